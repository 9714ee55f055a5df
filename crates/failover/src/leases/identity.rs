//! The identity of a process, as the holder of a Lease.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};

/// The maximum number of characters in the identity of another process. A Lease may contain any text. A host name has
/// at most 253 characters, which the longest role and the random part follow.
const MAX_LENGTH: usize = 253 + "_agent_0123456789abcdef".len();

/// The command that a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// `clusterip serve`
    Serve,
    /// `clusterip move`
    Move,
    /// `clusterip agent`
    Agent,
}

impl Role {
    fn word(self) -> &'static str {
        match self {
            Self::Serve => "serve",
            Self::Move => "move",
            Self::Agent => "agent",
        }
    }
}

/// The holder of a Lease, as `HOST_ROLE_RANDOM`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity(String);

impl Identity {
    /// A new identity for this process. No other process has the same, not even one that runs in the same Pod later.
    pub fn new(role: Role) -> Self {
        let host = hostname::get().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        Self::on(&host, role)
    }

    /// As [`Self::new`], on a host whose name the caller knows. It may differ from the host name of the process.
    pub fn on(host: &str, role: Role) -> Self {
        // The standard library seeds every `RandomState` from the randomness of the system.
        Self::with(host, role, RandomState::new().build_hasher().finish())
    }

    /// The identity with this random part.
    pub fn with(host: &str, role: Role, random: u64) -> Self {
        Self(format!("{host}_{}_{random:016x}", role.word()))
    }

    /// The identity of another process, as it is written in a Lease; at most its first 276 characters.
    pub fn of(holder: &str) -> Self {
        Self(holder.chars().take(MAX_LENGTH).collect())
    }

    /// The role of the process; `None` if the holder is not one of our processes.
    pub fn role(&self) -> Option<Role> {
        let mut parts = self.0.rsplit('_').skip(1);
        let word = parts.next()?;
        parts.next()?;
        [Role::Serve, Role::Move, Role::Agent].into_iter().find(|role| role.word() == word)
    }

    /// The host that the process runs on; `None` if the holder is not one of our processes.
    pub fn host(&self) -> Option<&str> {
        self.role()?;
        self.0.rsplitn(3, '_').nth(2)
    }

    /// The random part, which no other process has.
    pub fn random(&self) -> &str {
        self.0.rsplit('_').next().unwrap_or_default()
    }

    /// The identity as it is written in a Lease.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_tell_role_and_host() {
        let rows = [
            (Identity::with("node-1", Role::Serve, 0xab), Some((Role::Serve, "node-1"))),
            (Identity::with("my_own_host", Role::Move, 0), Some((Role::Move, "my_own_host"))),
            (Identity::with("", Role::Move, 0), Some((Role::Move, ""))),
            (Identity::with("node-1.example", Role::Agent, 1), Some((Role::Agent, "node-1.example"))),
            (Identity::of("serve"), None),
            (Identity::of("serve_1"), None),
            (Identity::of("node-1_3f2c"), None),
        ];
        for (identity, told) in rows {
            assert_eq!(identity.role(), told.map(|(role, _)| role), "{identity}");
            assert_eq!(identity.host(), told.map(|(_, host)| host), "{identity}");
        }
        assert_ne!(Identity::new(Role::Serve), Identity::new(Role::Serve));
    }

    #[test]
    fn identity_of_another_process_is_bounded() {
        let long = "é".repeat(300);
        assert_eq!(Identity::of(&long).as_str().chars().count(), 276);
        let longest = Identity::with(&"n".repeat(253), Role::Agent, 1);
        assert_eq!(Identity::of(longest.as_str()), longest);
    }
}

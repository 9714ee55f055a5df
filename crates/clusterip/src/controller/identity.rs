//! Who a process is, in a Lease.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};

/// What a process is.
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

/// Who holds a Lease: `HOST_ROLE_RANDOM`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity(String);

impl Identity {
    /// A new one for this process: no other has the same, not even one that runs in the same Pod later.
    pub fn new(role: Role) -> Self {
        let host = hostname::get().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        Self::on(&host, role)
    }

    /// The same, where it is known better than from the host's name where the process runs.
    pub fn on(host: &str, role: Role) -> Self {
        // The standard library seeds each of them from the system's randomness.
        Self::with(host, role, RandomState::new().build_hasher().finish())
    }

    pub(crate) fn with(host: &str, role: Role, random: u64) -> Self {
        Self(format!("{host}_{}_{random:016x}", role.word()))
    }

    /// That of somebody else's Lease.
    pub(crate) fn of(holder: &str) -> Self {
        Self(holder.to_owned())
    }

    /// What the process is; none where the Lease is not held by one of ours.
    pub fn role(&self) -> Option<Role> {
        let mut parts = self.0.rsplit('_').skip(1);
        let word = parts.next()?;
        parts.next()?;
        [Role::Serve, Role::Move, Role::Agent].into_iter().find(|role| role.word() == word)
    }

    /// Where it runs; nothing where the Lease is not held by one of ours.
    pub fn host(&self) -> Option<&str> {
        self.role()?;
        self.0.rsplitn(3, '_').nth(2)
    }

    /// The part that no other has.
    pub fn random(&self) -> &str {
        self.0.rsplit('_').next().unwrap_or_default()
    }

    /// As it stands in the Lease.
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
    fn an_identity_tells_what_it_is() {
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
}

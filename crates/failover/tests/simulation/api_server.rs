//! An API server: Leases, their versions and the events of watches.

use std::collections::BTreeMap;

use k8s_openapi::api::coordination::v1::Lease;

#[derive(Clone, Debug)]
pub(super) enum Request {
    Read(String),
    Write(Box<Lease>),
    Remove(Box<Lease>),
}

#[derive(Clone, Debug)]
pub(super) enum Answer {
    Found(Option<Box<Lease>>),
    Written(Box<Lease>),
    Gone,
    Conflict,
}

/// Models what an API server promises about objects and their versions.
#[derive(Default)]
pub(super) struct Store {
    pub(super) leases: BTreeMap<String, Lease>,
    version: u64,
    /// What watches deliver: the Lease, and whether it was deleted.
    pub(super) log: Vec<(Lease, bool)>,
}

impl Store {
    pub(super) fn carry_out(&mut self, request: Request) -> Answer {
        let name = |lease: &Lease| lease.metadata.name.clone().unwrap_or_default();
        match request {
            Request::Read(name) => Answer::Found(self.leases.get(&name).cloned().map(Box::new)),
            Request::Write(lease) => {
                let known = self.leases.get(&name(&lease)).map(|lease| lease.metadata.clone());
                match (&known, &lease.metadata.resource_version) {
                    (Some(_), None) => return Answer::Conflict,
                    (None, Some(_)) => return Answer::Gone,
                    (Some(known), Some(version)) if known.resource_version.as_ref() != Some(version) => {
                        return Answer::Conflict;
                    }
                    _ => {}
                }
                self.version += 1;
                let mut lease = lease;
                lease.metadata.uid = known.map_or_else(|| Some(format!("uid-{}", self.version)), |known| known.uid);
                lease.metadata.resource_version = Some(self.version.to_string());
                self.leases.insert(name(&lease), (*lease).clone());
                self.log.push(((*lease).clone(), false));
                Answer::Written(lease)
            }
            Request::Remove(lease) => {
                let Some(known) = self.leases.get(&name(&lease)) else { return Answer::Gone };
                if known.metadata.resource_version != lease.metadata.resource_version {
                    return Answer::Conflict;
                }
                self.delete(&name(&lease));
                Answer::Written(lease)
            }
        }
    }

    pub(super) fn delete(&mut self, name: &str) {
        if let Some(mut lease) = self.leases.remove(name) {
            self.version += 1;
            lease.metadata.resource_version = Some(self.version.to_string());
            self.log.push((lease, true));
        }
    }
}

//! A tenant gains nothing from `clusterip serve`, and can't harm others by it. The user `mallory` may write every
//! object of one namespace that the role `edit` allows, and nothing else. The server runs with the arguments and the
//! permissions of `deploy`. The ValidatingAdmissionPolicies of `deploy` are left out here:
//! `validating_admission_policies` tests them, and the server must not depend on them.

mod addresses_of_others;
mod delayed_moves;
mod fair_shares;
mod fenced_addresses;
mod flipped_workloads;
mod forged_claims;
mod forged_journals;
mod forged_servers;
mod hidden_services;
mod large_moves;
mod large_objects;
mod left_records;
mod load_balancers;
mod long_selectors;
mod many_objects;
mod resumed_moves;
mod settings_brake;
mod shown_addresses;
mod support;
mod unreadable_objects;
mod without_an_attacker;

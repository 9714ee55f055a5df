//! Every session file is read, so that it can be written and read again, or refused with an error message.

#![no_main]

use clusterip_cluster::policy::recorded_session;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match recorded_session::read(text) {
        Ok(exchanges) => assert_eq!(recorded_session::read(&recorded_session::write(&exchanges)).unwrap(), exchanges),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});

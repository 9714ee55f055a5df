//! A control plane of our own, which ends with the test process.

//! Logs, as text or JSON.

//! The server's certificate, exchanged while it serves.

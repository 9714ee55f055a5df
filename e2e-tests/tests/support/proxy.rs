//! A proxy before the API server that fails, waits or counts where a test says so.

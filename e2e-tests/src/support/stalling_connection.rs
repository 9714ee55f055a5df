//! A connection to the API server that a test can stall.

use kube::Client;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::control_plane::ControlPlane;

/// A TCP proxy before the API server. While it is stalled, its connections stay open, and no data passes.
pub struct StallingConnection {
    server: String,
    stalled: watch::Sender<bool>,
}

impl StallingConnection {
    /// Starts the proxy; it is not stalled.
    pub async fn new(plane: &ControlPlane) -> Self {
        let target = plane.server().trim_start_matches("https://").trim_end_matches('/').to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = format!("https://{}", listener.local_addr().unwrap());
        let stalled = watch::Sender::new(false);
        let sender = stalled.clone();
        tokio::spawn(async move {
            loop {
                let (mut near, _) = listener.accept().await.unwrap();
                let (target, mut stalled) = (target.clone(), sender.subscribe());
                tokio::spawn(async move {
                    // A connection that begins during a stall waits for its end. A connection that a stall interrupts
                    // stays open, and never passes data again.
                    stalled.wait_for(|stalled| !stalled).await.unwrap();
                    let mut far = TcpStream::connect(target).await.unwrap();
                    tokio::select! {
                        _ = copy_bidirectional(&mut near, &mut far) => return,
                        _ = stalled.wait_for(|stalled| *stalled) => {}
                    }
                    std::future::pending::<()>().await;
                });
            }
        });
        Self { server, stalled }
    }

    /// The URL of the proxy, such as `https://127.0.0.1:12345`.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// A client of the administrator that connects to the proxy.
    pub fn client(&self, plane: &ControlPlane) -> Client {
        Client::try_from(plane.config(&self.server, plane.admin_token())).unwrap()
    }

    /// Stops all data.
    pub fn stall(&self) {
        self.stalled.send_replace(true);
    }

    /// Lets the data of new connections pass.
    pub fn resume(&self) {
        self.stalled.send_replace(false);
    }
}

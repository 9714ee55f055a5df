//! A line to the API server that can go dead.

use kube::Client;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::control_plane::ControlPlane;

/// A connection to the API server that can fall silent without breaking.
pub struct Line {
    server: String,
    silent: watch::Sender<bool>,
}

impl Line {
    /// One that works.
    pub async fn new(plane: &ControlPlane) -> Self {
        let target = plane.server().trim_start_matches("https://").trim_end_matches('/').to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = format!("https://{}", listener.local_addr().unwrap());
        let silent = watch::Sender::new(false);
        let silence = silent.clone();
        tokio::spawn(async move {
            loop {
                let (mut near, _) = listener.accept().await.unwrap();
                let (target, mut silent) = (target.clone(), silence.subscribe());
                tokio::spawn(async move {
                    // Who is let in during the silence waits for its end; who is in then never hears again.
                    silent.wait_for(|silent| !silent).await.unwrap();
                    let mut far = TcpStream::connect(target).await.unwrap();
                    tokio::select! {
                        _ = copy_bidirectional(&mut near, &mut far) => return,
                        _ = silent.wait_for(|silent| *silent) => {}
                    }
                    std::future::pending::<()>().await;
                });
            }
        });
        Self { server, silent }
    }

    /// A client of the administrator that goes through it.
    pub fn client(&self, plane: &ControlPlane) -> Client {
        Client::try_from(plane.config(&self.server, plane.admin_token())).unwrap()
    }

    /// Nothing comes through any more.
    pub fn stall(&self) {
        self.silent.send_replace(true);
    }

    /// It works for whoever connects anew.
    pub fn resume(&self) {
        self.silent.send_replace(false);
    }
}

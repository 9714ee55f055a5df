//! When `clusterip serve` is ready.

use crate::support::eventually::eventually;
use crate::support::lent_control_plane::LentControlPlane;
use crate::support::serve_process::ServerBuilder;
use crate::support::stalling_connection::StallingConnection;

#[tokio::test]
async fn server_is_not_ready_while_the_api_server_hangs() {
    let plane = LentControlPlane::get().await;
    let namespace = plane.namespace("api-server-silent").await;
    let connection = StallingConnection::new(&plane).await;
    let kubeconfig = plane.write_kubeconfig("readiness.kubeconfig", connection.server(), plane.admin_token());
    let server = ServerBuilder::as_user(&kubeconfig).args(&["--namespace", &namespace, "--no-webhook"]);
    let mut server = server.start().await;

    connection.stall();
    eventually("a server that is not ready", async || {
        let (status, reasons) = server.get("/readyz").await?;
        let silent = "the API server has not answered for ";
        (status == 503 && reasons.lines().any(|line| line.contains(silent))).then_some(())
    })
    .await;
    connection.resume();
    server.ready().await;
    assert_eq!(server.terminate().await, 0);
}

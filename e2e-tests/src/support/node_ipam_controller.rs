//! The node IPAM controller of Kubernetes, which gives Nodes their pod CIDRs: its real controller manager, with only
//! this controller.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use super::control_plane::ControlPlane;
use super::eventually::eventually;
use super::serve_process::spawn_from_lasting_thread;

/// A `kube-controller-manager` that allocates pod CIDRs. It is killed when this value is dropped, and the kernel kills
/// it when the test process ends in any way.
pub struct NodeIpam {
    child: Child,
    log: PathBuf,
}

impl NodeIpam {
    /// Starts it as the administrator, with these additional arguments.
    pub fn start(plane: &ControlPlane, args: &[&str]) -> Self {
        let program = plane.kubectl_program().with_file_name("kube-controller-manager");
        let log = Self::log_of(plane);
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "--"])
            .arg(program)
            .arg("--kubeconfig")
            .arg(plane.kubeconfig())
            .args(["--controllers=node-ipam-controller", "--leader-elect=false", "--secure-port=0"])
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log).unwrap());
        Self { child: spawn_from_lasting_thread(command).unwrap(), log }
    }

    /// Starts it with these ranges for Nodes, and these Service ranges, from which it allocates no block.
    pub fn allocating(plane: &ControlPlane, cidrs: &str, service_ranges: &str, args: &[String]) -> Self {
        let (cidrs, services) =
            (format!("--cluster-cidr={cidrs}"), format!("--service-cluster-ip-range={service_ranges}"));
        let all = ["--allocate-node-cidrs=true", "--configure-cloud-routes=false", &cidrs, &services];
        Self::start(plane, &all.into_iter().chain(args.iter().map(String::as_str)).collect::<Vec<_>>())
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the process has ended by itself.
    pub async fn ended(&mut self) -> ExitStatus {
        let child = &mut self.child;
        eventually("the controller manager to end", async || child.try_wait().unwrap()).await
    }

    /// The log of the latest controller manager of this control plane.
    pub fn log(plane: &ControlPlane) -> String {
        std::fs::read_to_string(Self::log_of(plane)).unwrap()
    }

    fn log_of(plane: &ControlPlane) -> PathBuf {
        Path::new(plane.folder()).join("nodeipam.log")
    }
}

impl Drop for NodeIpam {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the log of the controller manager:");
            eprintln!("{}", std::fs::read_to_string(&self.log).unwrap_or_default());
        }
    }
}

//! The faults of agents, of their networks and of their connections.

use std::collections::BTreeSet;
use std::sync::Arc;

use clusterip_failover::heartbeat_state;
use k8s_openapi::jiff::Timestamp;
use proptest::prelude::*;

use super::api_server::Request;
use super::{Event, Happening, NODES, World};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// No request reaches the API server, and no answer comes back.
    Cut,
    /// The process is paused.
    Pause,
    /// The process is killed, and starts again when the fault ends.
    Kill,
    /// The process receives SIGTERM, and releases its addresses and its heartbeat; it starts again when the fault ends.
    Stop,
    /// The watch of the agent delivers nothing.
    Deaf,
    /// The heartbeat of the agent is deleted by hand.
    DeleteHeartbeat,
    /// Requests are slow, and many are lost.
    Slow,
    /// The node of the agent may not hold any address.
    Forbidden,
    /// The network of the node can't hold any address, but can release addresses.
    Broken,
}

impl World {
    pub(super) fn begin(&mut self, agent: usize, fault: Fault) {
        let it = &mut self.agents[agent];
        it.faults.push(fault);
        match fault {
            Fault::Cut | Fault::Pause | Fault::Deaf | Fault::Slow | Fault::Broken => {}
            Fault::Kill => it.alive = false,
            Fault::Stop => {
                if !it.alive || it.has(Fault::Pause) {
                    return;
                }
                it.alive = false;
                self.kernels[agent].clear();
                self.agents[agent].heartbeat_state.lapse();
                // If the API server can't be reached, or the heartbeat is not known, the heartbeat is not given
                // back.
                let it = &self.agents[agent];
                if !it.has(Fault::Cut)
                    && let Some(lease) = it.heartbeat_state.give_back(Timestamp::UNIX_EPOCH)
                {
                    self.store.carry_out(Request::Write(Box::new(lease)));
                    (0..NODES.len()).for_each(|agent| self.deliver(agent));
                }
            }
            Fault::DeleteHeartbeat => {
                self.store.delete(&heartbeat_state::name(NODES[agent]));
                (0..NODES.len()).for_each(|agent| self.deliver(agent));
            }
            Fault::Forbidden => self.assign(),
        }
    }

    pub(super) fn end(&mut self, agent: usize, fault: Fault) {
        let it = &mut self.agents[agent];
        // The same fault may have begun twice.
        if let Some(at) = it.faults.iter().position(|other| *other == fault) {
            it.faults.swap_remove(at);
        }
        match fault {
            Fault::Cut | Fault::Deaf | Fault::Slow | Fault::Broken | Fault::DeleteHeartbeat => {}
            Fault::Pause => {
                if it.alive && !it.has(Fault::Pause) {
                    // A resumed process handles at once everything that arrived meanwhile.
                    for event in std::mem::take(&mut it.waiting) {
                        self.take(agent, event);
                        self.plan(agent);
                    }
                }
            }
            Fault::Kill | Fault::Stop => {
                if !it.alive {
                    self.start(agent);
                }
            }
            Fault::Forbidden => self.assign(),
        }
        self.deliver(agent);
    }

    fn assign(&mut self) {
        let allowed = NODES.iter().zip(&self.agents).filter(|(_, agent)| !agent.has(Fault::Forbidden));
        let nodes: Arc<BTreeSet<String>> = Arc::new(allowed.map(|(node, _)| (*node).to_owned()).collect());
        for assignment in Arc::make_mut(&mut self.assignments).values_mut() {
            assignment.nodes.clone_from(&nodes);
        }
        for agent in 0..NODES.len() {
            // Each agent learns of the new assignments after a delay of its own.
            let (who, delay) = (self.who(agent, 0), self.delay(agent));
            self.at(self.now + delay, Happening::To(who, Box::new(Event::Replan)));
        }
    }
}

pub(super) fn any_fault() -> impl Strategy<Value = Fault> {
    use Fault::{Broken, Cut, Deaf, DeleteHeartbeat, Forbidden, Kill, Pause, Slow, Stop};
    prop::sample::select(vec![Cut, Pause, Kill, Stop, Deaf, DeleteHeartbeat, Slow, Forbidden, Broken])
}

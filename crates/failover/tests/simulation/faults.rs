//! The faults of agents, of their networks and of their connections.

use std::collections::BTreeSet;
use std::sync::Arc;

use clusterip_failover::heartbeat_state;
use k8s_openapi::jiff::Timestamp;
use proptest::prelude::*;

use super::api_server::Request;
use super::{Event, Happening, NODES, World};

#[derive(Clone, Debug)]
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
    pub(super) fn begin(&mut self, agent: usize, fault: &Fault) {
        let it = &mut self.agents[agent];
        match fault {
            Fault::Cut => it.cut += 1,
            Fault::Pause => it.paused += 1,
            Fault::Deaf => it.deaf += 1,
            Fault::Slow => it.slow += 1,
            Fault::Kill => it.alive = false,
            Fault::Stop => {
                if !it.alive || it.paused > 0 {
                    return;
                }
                it.alive = false;
                self.kernels[agent].clear();
                self.agents[agent].heartbeat_state.lapse();
                // If the API server can't be reached, or the heartbeat is not known, the heartbeat is not given
                // back.
                let it = &self.agents[agent];
                if it.cut == 0
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
            Fault::Forbidden => {
                it.forbidden += 1;
                self.assign();
            }
            Fault::Broken => it.broken += 1,
        }
    }

    pub(super) fn end(&mut self, agent: usize, fault: &Fault) {
        let it = &mut self.agents[agent];
        match fault {
            Fault::Cut => it.cut -= 1,
            Fault::Deaf => it.deaf -= 1,
            Fault::Slow => it.slow -= 1,
            Fault::Pause => {
                it.paused -= 1;
                if it.alive && it.paused == 0 {
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
            Fault::DeleteHeartbeat => {}
            Fault::Forbidden => {
                it.forbidden -= 1;
                self.assign();
            }
            Fault::Broken => it.broken -= 1,
        }
        self.deliver(agent);
    }

    fn assign(&mut self) {
        let allowed = NODES.iter().zip(&self.agents).filter(|(_, agent)| agent.forbidden == 0);
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
    prop_oneof![
        Just(Fault::Cut),
        Just(Fault::Pause),
        Just(Fault::Kill),
        Just(Fault::Stop),
        Just(Fault::Deaf),
        Just(Fault::DeleteHeartbeat),
        Just(Fault::Slow),
        Just(Fault::Forbidden),
        Just(Fault::Broken),
    ]
}

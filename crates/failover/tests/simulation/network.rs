//! Sends requests and watch events with delays, and loses some of them.

use clusterip_failover::state::LeaseWrite;
use clusterip_failover::timing::REQUEST_TIMEOUT;

use super::api_server::Request;
use super::faults::Fault;
use super::{Event, Happening, World, millis};

impl World {
    pub(super) fn delay(&mut self, agent: usize) -> u64 {
        if self.agents[agent].has(Fault::Slow) && !self.calm {
            if self.chance.u64(..100) < 20 { self.chance.u64(..8000) } else { self.chance.u64(..1500) }
        } else {
            self.chance.u64(1..=60)
        }
    }

    pub(super) fn is_lost(&mut self, agent: usize) -> bool {
        let percent = if self.agents[agent].has(Fault::Slow) { 30 } else { 1 };
        self.agents[agent].has(Fault::Cut) || !self.calm && self.chance.u64(..100) < percent
    }

    pub(super) fn send(&mut self, agent: usize, write: Option<LeaseWrite>, request: Request) -> u64 {
        self.agents[agent].requests += 1;
        let number = self.agents[agent].requests;
        let who = self.who(agent, number);
        let is_renewal = write.is_none();
        let timeout = if is_renewal { self.failovers[agent].request_timeout() } else { REQUEST_TIMEOUT };
        let patience = self.now + millis(timeout);
        self.at(patience, Happening::To(who, Box::new(Event::NoAnswer(write.clone()))));
        let delay = self.delay(agent);
        if !self.is_lost(agent) {
            self.at(self.now + delay, Happening::Arrives(who, Box::new((write, request))));
        }
        number
    }

    /// Lets the watch of this agent deliver the events of the store, after a delay.
    pub(super) fn deliver(&mut self, agent: usize) {
        let delay = self.delay(agent);
        self.at(self.now + delay, Happening::Delivered(agent));
    }
}

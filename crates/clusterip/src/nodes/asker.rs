//! Asks the policy for the blocks of Nodes, one after the other.
//!
//! One instance of the module answers a whole row of questions, in a thread of its own: with an instance for
//! each, thousands of Nodes at once take half as long again.

use std::sync::{Arc, mpsc};
use std::thread;

use clusterip_core::answer::Answer;
use clusterip_core::node::Allocation;
use serde_json::Value;
use tokio::sync::oneshot;

use crate::live_settings::LiveSettings;
use crate::metrics::Metrics;
use crate::policy::module::{Instance, Module, ModuleError};

/// Asks the policy. Its thread ends when this goes.
pub struct Asker {
    questions: mpsc::Sender<Question>,
}

struct Question {
    request: Value,
    settings: Arc<LiveSettings>,
    allocation: Allocation,
    answer: oneshot::Sender<Result<Answer, ModuleError>>,
}

impl Asker {
    /// Begins its thread. What goes wrong is counted in `metrics`.
    pub fn start(module: Arc<Module>, metrics: Arc<Metrics>) -> Self {
        let (questions, asked) = mpsc::channel::<Question>();
        thread::spawn(move || {
            let mut kept = None;
            for question in asked {
                let answer = answer(&module, &mut kept, &question);
                if answer.is_err() {
                    metrics.evaluation_error();
                }
                // Whoever asked may not wait any more.
                let _ = question.answer.send(answer);
            }
        });
        Self { questions }
    }

    /// Asks for the blocks of a Node, by these settings, where this is held.
    ///
    /// # Errors
    /// [`ModuleError`] where the policy does not answer.
    pub async fn ask(
        &self,
        request: Value,
        settings: &Arc<LiveSettings>,
        allocation: Allocation,
    ) -> Result<Answer, ModuleError> {
        let (sender, answer) = oneshot::channel();
        // Where the thread has ended, so has the other end of `sender`.
        let _ = self.questions.send(Question { request, settings: Arc::clone(settings), allocation, answer: sender });
        answer.await.unwrap_or_else(|_| Err(ModuleError::Call("nobody asks it any more".to_owned())))
    }
}

/// Asks the instance that is kept, or a new one. One that failed may have been stopped halfway: it is not kept.
fn answer(module: &Module, kept: &mut Option<Instance>, question: &Question) -> Result<Answer, ModuleError> {
    let instance = match kept.take() {
        Some(instance) => instance,
        None => module.assigning()?,
    };
    let answer = instance.assign(&question.request, &question.settings.document, &question.allocation)?;
    *kept = Some(instance);
    Ok(answer)
}

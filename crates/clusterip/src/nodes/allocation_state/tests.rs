//! Tests of `allocation_state`.

use clusterip_core::nodes::Node;

use super::*;

fn nets(texts: &[&str]) -> Vec<IpNet> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn node(name: &str, uid: &str, os: &str, blocks: &[&str]) -> WatchedNode {
    WatchedNode {
        name: name.to_owned(),
        uid: uid.to_owned(),
        version: "1".to_owned(),
        deleting: false,
        blocks: nets(blocks),
        unassigned: Node {
            name: name.to_owned(),
            labels: [("os".to_owned(), os.to_owned())].into(),
            blocks: Vec::new(),
        },
    }
}

fn decision(verdict: Verdict) -> Decision {
    Decision { verdict, ..Decision::denied(500, String::new()) }
}

/// A state, and the steps that change it.
struct Scenario {
    nodes: AllocationState,
    now: Instant,
    settings: NodeSettings,
}

impl Scenario {
    fn new() -> Self {
        Self { nodes: AllocationState::default(), now: Instant::now(), settings: NodeSettings::default() }
    }

    fn sees(&mut self, name: &str) -> &mut Self {
        self.nodes.apply(node(name, "u", "linux", &[]));
        self
    }

    /// The next task, as text.
    fn task(&mut self) -> Option<String> {
        Some(match self.nodes.next_task()? {
            Task::Ask(node) => format!("ask {}", node.name),
            Task::Write(write) => format!("write {} to {}", write.blocks[0], write.node.name),
        })
    }

    fn is_full(&mut self, name: &str) {
        let decision = Decision { pool: Some("p".to_owned()), ..Decision::denied(403, "full".to_owned()) };
        assert_eq!(self.nodes.decided(name, &decision, &self.settings, self.now), None);
    }

    fn gives(&mut self, name: &str, blocks: &[&str]) -> Box<BlockWrite> {
        let decision = decision(Verdict::Assigned(nets(blocks)));
        self.nodes.decided(name, &decision, &self.settings, self.now).unwrap()
    }

    fn asks_and_gives(&mut self, name: &str, blocks: &[&str]) -> Box<BlockWrite> {
        assert_eq!(self.sees(name).task(), Some(format!("ask {name}")));
        self.gives(name, blocks)
    }

    /// The blocks that are held, and how many Nodes wait.
    fn state(&self) -> (Vec<String>, usize) {
        (self.nodes.held.allocation().held.iter().map(ToString::to_string).collect(), self.nodes.waiting.len())
    }
}

#[test]
fn results_of_writing_blocks_change_the_state() {
    const A: &str = "10.0.0.0/24";
    let other = || Box::new(node("x", "u", "linux", &["10.0.9.0/24"]));
    let windows = || Box::new(node("x", "u", "windows", &[]));
    let mut deleting = *windows();
    deleting.deleting = true;
    let unclear =
        |doubt: Option<&str>| WriteOutcome::Unclear { doubt: doubt.map(str::to_owned), reason: String::new() };
    let again = Some(format!("write {A} to x"));
    let asked = Some("ask x".to_owned());
    struct Case {
        name: &'static str,
        outcome: WriteOutcome,
        held: &'static [&'static str],
        /// The number of Nodes that wait.
        waiting: usize,
        next_task: Option<String>,
        next_task_after_all_pauses: Option<String>,
    }
    let done = |name, outcome, held| Case {
        name,
        outcome,
        held,
        waiting: 0,
        next_task: None,
        next_task_after_all_pauses: None,
    };
    let failed = |name, outcome, held, next_task_after_all_pauses: &Option<String>| Case {
        waiting: 1,
        next_task_after_all_pauses: next_task_after_all_pauses.clone(),
        ..done(name, outcome, held)
    };
    let cases = [
        done("written", WriteOutcome::Written, &[A]),
        done("the Node has another block", WriteOutcome::Changed(other()), &["10.0.9.0/24"]),
        Case {
            waiting: 1,
            next_task: asked.clone(),
            ..done("the labels of the Node have changed", WriteOutcome::Changed(windows()), &[])
        },
        done("being deleted", WriteOutcome::Changed(Box::new(deleting)), &[]),
        failed("gone", WriteOutcome::Gone, &[], &asked),
        failed("refused", WriteOutcome::Refused(String::new()), &[], &asked),
        failed("too late", WriteOutcome::TooLate, &[], &asked),
        failed("unclear", unclear(Some("1")), &[A], &again),
        failed("unclear, and dead", unclear(None), &[A], &again),
    ];
    for Case { name, outcome, held, waiting, next_task, next_task_after_all_pauses } in cases {
        let mut scenario = Scenario::new();
        let write = scenario.asks_and_gives("x", &[A]);
        scenario.nodes.written(&write, outcome, scenario.now);
        let held: Vec<String> = held.iter().map(|block| (*block).to_owned()).collect();
        assert_eq!(scenario.state(), (held, waiting), "{name}");
        assert_eq!(scenario.task(), next_task, "{name}");
        scenario.nodes.wake(scenario.now + MAX_PAUSE);
        assert_eq!(scenario.task(), next_task_after_all_pauses, "{name}, later");
    }
}

#[test]
fn events_behind_or_ahead_of_the_answer_are_handled() {
    const A: &str = "10.0.0.0/24";
    let mut scenario = Scenario::new();
    let write = scenario.asks_and_gives("x", &[A]);
    // The change by the request itself, before its answer.
    scenario.nodes.apply(node("x", "u", "linux", &[A]));
    assert_eq!(scenario.state(), (vec![A.to_owned()], 0));
    scenario.nodes.written(&write, WriteOutcome::Refused(String::new()), scenario.now);
    assert_eq!(scenario.state(), (vec![A.to_owned()], 0), "an answer to what is settled is no news");
    scenario.nodes.apply(node("x", "u", "windows", &[]));
    assert_eq!((scenario.state(), scenario.task()), ((vec![A.to_owned()], 0), None), "older than what is known");
    // Another Node of the same name.
    scenario.nodes.apply(node("x", "v", "linux", &[]));
    assert_eq!((scenario.state(), scenario.task()), ((vec![], 1), Some("ask x".to_owned())));
    scenario.nodes.delete("x", "u");
    assert_eq!(scenario.state().1, 1, "the one before is gone, not this one");
    let write = scenario.gives("x", &[A]);
    scenario.nodes.apply(node("x", "w", "linux", &[]));
    scenario.nodes.written(&write, WriteOutcome::Written, scenario.now);
    assert_eq!(
        (scenario.state(), scenario.task()),
        ((vec![], 1), Some("ask x".to_owned())),
        "written to one that is gone"
    );
    scenario.nodes.retain_listed(&BTreeSet::new());
    assert_eq!((scenario.state(), scenario.nodes.len()), ((vec![], 0), 0));
}

#[test]
fn blocks_without_an_answer_stay_given_whatever_changes() {
    const A: &str = "10.0.0.0/24";
    let mut scenario = Scenario::new();
    let write = scenario.asks_and_gives("x", &[A]);
    scenario.nodes.written(
        &write,
        WriteOutcome::Unclear { doubt: Some("1".to_owned()), reason: String::new() },
        scenario.now,
    );
    scenario.nodes.apply(node("x", "u", "windows", &[]));
    scenario.nodes.settings_changed();
    let mut deleting = node("x", "u", "windows", &[]);
    deleting.deleting = true;
    scenario.nodes.apply(deleting);
    assert_eq!((scenario.state(), scenario.task()), ((vec![A.to_owned()], 1), None));
    scenario.nodes.wake(scenario.now + MAX_PAUSE);
    let Some(Task::Write(write)) = scenario.nodes.next_task() else { panic!("nothing is written") };
    assert_eq!((write.doubt.as_deref(), write.blocks), (Some("1"), nets(&[A])));
    scenario.nodes.delete("x", "u");
    assert_eq!(scenario.state(), (vec![], 0));
}

#[test]
fn room_goes_to_the_longest_waiting_node_one_at_a_time() {
    let mut scenario = Scenario::new();
    for name in ["c", "a", "b"] {
        assert_eq!(scenario.sees(name).task(), Some(format!("ask {name}")));
        scenario.is_full(name);
    }
    assert_eq!(
        (scenario.state().1, scenario.task(), scenario.nodes.has_task()),
        (3, None, false),
        "the policy is not asked while every pool is full"
    );
    scenario.nodes.apply(node("held", "u", "linux", &["10.0.0.0/24"]));
    scenario.sees("new");
    scenario.nodes.delete("held", "u");
    assert_eq!(scenario.task(), Some("ask c".to_owned()), "the Node that waited longest comes first");
    scenario.gives("c", &["10.0.0.0/24"]);
    assert_eq!(scenario.task(), Some("ask a".to_owned()), "there may be more room");
    scenario.is_full("a");
    assert_eq!(scenario.task(), Some("ask new".to_owned()));
    scenario.is_full("new");
    assert_eq!(scenario.task(), None);
    // With new settings all Nodes are asked about again, in the order in which they began to wait.
    scenario.nodes.settings_changed();
    let turns: Vec<_> = std::iter::from_fn(|| scenario.task()).collect();
    assert_eq!(turns, ["ask a", "ask b", "ask new"]);
}

#[test]
fn node_without_pool_is_asked_about_again_when_its_labels_change() {
    let mut scenario = Scenario::new();
    assert_eq!(scenario.sees("x").task(), Some("ask x".to_owned()));
    let no_matching_pool = decision(Verdict::Unchanged("no pool".to_owned()));
    scenario.nodes.decided("x", &no_matching_pool, &scenario.settings, scenario.now);
    assert_eq!((scenario.nodes.is_news("x", "no pool"), scenario.nodes.is_news("x", "no pool")), (true, false));
    assert_eq!((scenario.state().1, scenario.sees("x").task()), (0, None));
    scenario.nodes.apply(node("x", "u", "windows", &[]));
    assert_eq!((scenario.state().1, scenario.task()), (1, Some("ask x".to_owned())));
}

#[test]
fn pauses_double_up_to_a_minute() {
    let mut scenario = Scenario::new();
    let mut pauses = Vec::new();
    scenario.sees("x");
    for _ in 0..9 {
        assert_eq!(scenario.task(), Some("ask x".to_owned()));
        let failed = Decision::denied(500, String::new());
        scenario.nodes.decided("x", &failed, &scenario.settings, scenario.now);
        let due = scenario.nodes.due().unwrap();
        pauses.push((due - scenario.now).as_millis());
        scenario.nodes.wake(due - Duration::from_millis(1));
        assert_eq!(scenario.task(), None);
        scenario.now = due;
        scenario.nodes.wake(due);
    }
    assert_eq!(pauses, [500, 1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000]);
}

#[test]
fn nodes_sharing_a_block_are_judged_again_when_one_comes_or_goes() {
    let mut scenario = Scenario::new();
    let checked = |scenario: &mut Scenario| -> Vec<String> {
        std::iter::from_fn(|| scenario.nodes.next_to_check()).map(|seen| seen.name).collect()
    };
    scenario.nodes.apply(node("a", "u", "linux", &["10.0.0.0/24"]));
    scenario.nodes.apply(node("b", "u", "linux", &["10.0.1.0/24"]));
    assert_eq!(checked(&mut scenario), ["a", "b"]);
    scenario.nodes.apply(node("c", "u", "linux", &["10.0.0.0/25"]));
    assert_eq!(checked(&mut scenario), ["a", "c"]);
    scenario.nodes.set_misplaced("a", [Misplaced::Shared].into());
    scenario.nodes.set_misplaced("c", [Misplaced::Shared].into());
    assert_eq!(scenario.nodes.misplaced(), [(Misplaced::Shared, 2)].into());
    scenario.nodes.delete("c", "u");
    assert_eq!(checked(&mut scenario), ["a"]);
    scenario.nodes.set_misplaced("a", BTreeSet::new());
    assert_eq!(scenario.nodes.misplaced(), [].into());
    scenario.nodes.apply(node("b", "u", "windows", &["10.0.1.0/24"]));
    assert_eq!(checked(&mut scenario), ["b"], "its labels are others now");
}

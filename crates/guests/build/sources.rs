//! The guests in WebAssembly text.

/// A guest.
pub struct Source {
    pub name: String,
    /// The module in WebAssembly text.
    pub text: String,
}

/// A guest that speaks waPC.
struct Guest<'a> {
    name: &'a str,
    /// Its memory from address 0 on.
    data: &'a str,
    /// The body of its start function.
    start: &'a str,
    /// The body of `__guest_call`, whose first parameter is the length of the operation's name.
    call: &'a str,
}

const FOREVER: &str = "(loop $again (br $again))";
const TRAP: &str = "(unreachable)";
const RECURSE: &str = "(call $deeper)";
const NOTHING: &str = "(i32.const 0)";
/// An answer about settings.
const VALID: &str = r#"{"valid": true, "message": null}"#;

/// All guests.
pub fn all() -> Vec<Source> {
    let mut all: Vec<Source> = misbehaving().iter().map(source).collect();
    all.extend(answering());
    all.extend(growing());
    all.extend(failing_in_validate());
    all.extend(not_policies());
    all
}

/// Guests that give no answer.
fn misbehaving() -> [Guest<'static>; 9] {
    let call = |name, call| Guest { name, data: "", start: "", call };
    [
        call("loops for ever", "(loop $again (br $again)) (i32.const 0)"),
        call("grows for ever", "(loop $again (drop (memory.grow (i32.const 16))) (br $again)) (i32.const 0)"),
        Guest { name: "loops for ever as it begins", data: "", start: FOREVER, call: NOTHING },
        call("traps", TRAP),
        call("recurses for ever", "(call $deeper) (i32.const 0)"),
        call("reads outside its memory", "(i32.load (i32.const -4))"),
        call("answers from outside its memory", "(call $respond (i32.const -9) (i32.const 8)) (i32.const 1)"),
        Guest {
            name: "gives an error",
            data: "no way",
            start: "",
            call: "(call $fail (i32.const 0) (i32.const 6)) (i32.const 0)",
        },
        call("gives nothing", NOTHING),
    ]
}

/// Guests that give the same answer to everything.
fn answering() -> Vec<Source> {
    const CHANGED: &str = r#"{"accepted": true, "mutated_object": {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "linux-1", "labels": {"kubernetes.io/os": "linux"}},
        "spec": {"podCIDR": "10.0.9.0/24", "podCIDRs": ["10.0.9.0/24"]}
    }}"#;
    let answer = |name: &str, text: &str| source(&Guest { name, data: text, start: "", call: &respond(text) });
    let invalid = ["hello", "", "5", r#"{"accepted": "yes"}"#, r#"{"accepted": true"#];
    let mut all: Vec<Source> = invalid.into_iter().map(|text| answer(&format!("answers {text}"), text)).collect();
    all.push(answer("denies", r#"{"accepted": false, "message": "it is taken", "code": 403}"#));
    all.push(answer("changes the Node", CHANGED));
    let call = format!("(if (global.get $calls) (then {TRAP})) (global.set $calls (i32.const 1)) {}", respond(VALID));
    all.push(source(&Guest { name: "answers once", data: VALID, start: "", call: &call }));
    all
}

/// Guests that trap if they get more memory than they should. Each starts with one page of 64 KiB.
fn growing() -> Vec<Source> {
    let text = r#"{"message": "refused"}"#;
    let refused = respond(text);
    let grow = |pages: u32| {
        let failed = format!("(i32.eq (memory.grow (i32.const {pages})) (i32.const -1))");
        let call = format!("(if (result i32) {failed} (then {refused}) (else {TRAP}))");
        source(&Guest { name: &format!("traps with {pages} more pages"), data: text, start: "", call: &call })
    };
    // It grows until it can't.
    let most =
        "(block $full (loop $more (br_if $full (i32.eq (memory.grow (i32.const 16)) (i32.const -1))) (br $more)))
        (if (i32.gt_u (memory.size) (i32.const 128)) (then (unreachable)))
        (i32.const 0)";
    let most = source(&Guest { name: "traps with more than 128 pages", data: "", start: "", call: most });
    vec![grow(4096), grow(4095), most]
}

/// Guests that fail to validate a request, and answer about settings.
fn failing_in_validate() -> Vec<Source> {
    let rows = [("loops for ever", FOREVER), ("traps", TRAP), ("recurses for ever", RECURSE)];
    let failing = rows.iter().map(|(name, fail)| {
        // `validate` has 8 letters.
        let is_validate = "(i32.eq (local.get $operation) (i32.const 8))";
        let call = format!("(if {is_validate} (then {fail})) {}", respond(VALID));
        source(&Guest { name: &format!("{name} in validate"), data: VALID, start: "", call: &call })
    });
    failing.collect()
}

/// Modules that are no guests of a host that speaks waPC.
fn not_policies() -> Vec<Source> {
    const ENV: &str = r#"(module
        (import "env" "f" (func))
        (func (export "__guest_call") (param i32 i32) (result i32) (i32.const 0)))"#;
    const WASI: &str = r#"(module (import "wasi_snapshot_preview1" "proc_exit" (func (param i32))))"#;
    let rows = [
        ("an import from elsewhere", ENV),
        ("no function to call", r#"(module (memory (export "memory") 1))"#),
        ("an import of WASI", WASI),
    ];
    rows.iter().map(|(name, text)| Source { name: (*name).to_owned(), text: (*text).to_owned() }).collect()
}

/// A body that answers with this text, which is at address 0.
fn respond(text: &str) -> String {
    format!("(call $respond (i32.const 0) (i32.const {})) (i32.const 1)", text.len())
}

fn source(Guest { name, data, start, call }: &Guest<'_>) -> Source {
    let data = data.replace('"', "\\22").replace('\n', "\\0a");
    let text = format!(
        r#"(module
            (import "wapc" "__guest_response" (func $respond (param i32 i32)))
            (import "wapc" "__guest_error" (func $fail (param i32 i32)))
            (memory (export "memory") 1)
            (data (i32.const 0) "{data}")
            (global $calls (mut i32) (i32.const 0))
            (func $deeper (call $deeper))
            (func (export "wapc_init") {start})
            (func (export "__guest_call") (param $operation i32) (param $payload i32) (result i32) {call}))"#
    );
    Source { name: (*name).to_owned(), text }
}

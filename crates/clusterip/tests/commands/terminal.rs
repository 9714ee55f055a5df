//! What reaches the terminal: colours, text of manifests, completions and the manual.

use serde_json::json;

use crate::command::{DEFAULT_POOLS, Done, Folder, kubeconfig, service_cidr, service_manifest, snapshot_of};

#[test]
fn names_from_manifests_can_not_control_the_terminal() {
    struct Case {
        name: &'static str,
        input: String,
        status: i32,
    }
    // ESC, a C1 control character, a character that changes the direction of reading, a bell, and a line end.
    let evil = "\\u001b[31mred\\u009b2J\\u202egnp.exe\\u0007\\nx";
    let object = |kind: &str, spec: &str| {
        format!(
            r#"{{"apiVersion": "v1", "kind": "{kind}", "metadata": {{"name": "{evil}", "namespace": "shop"}}, "spec": {spec}}}"#
        )
    };
    let pod = object("Pod", r#"{"nodeSelector": {"kubernetes.io/os": "linux"}}"#).replacen(
        "metadata\": {",
        "metadata\": {\"labels\": {\"a\": \"b\"}, ",
        1,
    );
    // A Service with another name than a DNS label is denied.
    let twice = object("Service", r#"{"selector": {"a": "b"}}"#).replacen(evil, "web", 1);
    let cases = [
        Case { name: "names, evidence and warnings", input: format!("{twice}\n---\n{twice}\n---\n{pod}\n"), status: 0 },
        Case { name: "a kind", input: format!(r#"{{"apiVersion": "v1", "kind": "{evil}"}}"#), status: 2 },
        Case { name: "a key", input: format!(r#"{{"{evil}": 1, "{evil}": 2}}"#), status: 2 },
        Case {
            name: "an API that is gone",
            input: object("Deployment", "{}").replace(r#""v1""#, r#""apps/v1beta1""#),
            status: 0,
        },
    ];
    for Case { name, input, status } in cases {
        let done = Folder::new("controls").piped("plan -", &input);
        assert_eq!(done.status, status, "{name}: {done:?}");
        let shown = done.stdout + &done.stderr;
        assert!(shown.contains(r"\u{1b}[31mred\u{9b}2J\u{202e}gnp.exe\u{7}\nx"), "{name}: {shown}");
        let steering = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!shown.contains(steering), "{name}: {shown:?}");
    }
}

#[test]
fn texts_of_tenants_are_no_commands_of_a_pipeline() {
    let evil = "::error::##vso[task.complete]##[x]";
    let metadata = json!({"name": evil, "namespace": evil, "annotations": {"clusterip-policy/os": evil}});
    let spec = json!({"clusterIP": "172.21.0.60", "clusterIPs": ["172.21.0.60"], "ports": [{"port": 80}]});
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec});
    let folder = Folder::new("pipelines");
    folder.write("manifests/web.json", service.to_string()).write("snapshot.json", snapshot_of(&[service]));
    folder.write("broken/a\n::error::##vso[x].yaml", "{");
    let outputs: [(&str, &[&str]); 3] = [
        ("plan manifests", &["table", "json"]),
        ("plan broken", &["table"]),
        ("audit --snapshot snapshot.json", &["table", "wide", "name", "json", "html", "junit", "markdown"]),
    ];
    for (command, outputs) in outputs {
        for output in outputs {
            let done = folder.clusterip(&format!("{command} -o {output}"));
            let shown = done.stdout + &done.stderr;
            assert!(shown.contains("error::"), "{command} {output}: {shown}");
            assert!(!shown.contains("##v") && !shown.contains("##["), "{command} {output}: {shown}");
            let is_command = |line: &str| line.trim_start().starts_with("::");
            assert!(!shown.lines().any(is_command), "{command} {output}: {shown}");
        }
    }
}

#[test]
fn colours_are_used_only_where_wanted() {
    let input = service_manifest("web", "{}");
    let run = |args: &str, environment: &[(&str, &str)]| {
        let args: Vec<&str> = args.split(' ').collect();
        Folder::new("colours").run_with(&args, &input, environment).stdout
    };
    let plain = run("plan -", &[]);
    assert!(!plain.contains('\u{1b}'), "no terminal: {plain:?}");
    let forced = ("CLICOLOR_FORCE", "1");
    let coloured = run("plan -", &[forced]);
    assert!(coloured.contains("\u{1b}[32m172.21.0.173\u{1b}[0m"), "{coloured:?}");
    assert_eq!(without_colours(&coloured), plain, "colours change no column");
    for environment in [&[("NO_COLOR", "1")][..], &[("CLICOLOR", "0")], &[("NO_COLOR", "1"), ("CLICOLOR", "1")]] {
        assert_eq!(run("plan -", environment), plain, "{environment:?}");
    }
    assert_eq!(run("plan - --color never", &[forced]), plain);
    assert_eq!(run("plan - --color always", &[("NO_COLOR", "1")]), coloured);
    assert_eq!(run("plan - --color auto", &[forced]), coloured);
    for output in ["json", "yaml"] {
        assert!(!run(&format!("plan - -o {output}"), &[forced]).contains('\u{1b}'), "-o {output}");
    }
}

#[test]
fn quiet_prints_results_and_errors_only() {
    let deployment = "apiVersion: extensions/v1beta1\nkind: Deployment\nmetadata: {name: web}\n";
    let input = service_manifest("web", "{}") + "---\n" + deployment;
    let run = |args: &str| Folder::new("quiet").piped(args, &input);
    let loud = run("plan -");
    assert!(loud.stderr.starts_with("warning: "), "{loud:?}");
    assert_eq!(run("plan - -q"), Done::ok(loud.stdout));
    let failed = run("plan none.yaml --quiet");
    assert!(failed.status == 2 && failed.stderr.starts_with("error: "), "{failed:?}");
}

#[test]
fn titles_of_tables_can_be_omitted() {
    let args = "plan examples/nodes --settings examples/settings/nodes.yaml";
    let titled = Folder::workspace().clusterip(args).stdout;
    let titles = |line: &&str| line.starts_with("NAMESPACE  ") || line.starts_with("NODE  ");
    assert_eq!(titled.lines().filter(titles).count(), 2, "{titled}");
    // Without its title, a column may be narrower.
    let cells = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let expected: Vec<_> = titled.lines().filter(|line| !titles(line)).map(cells).collect();
    let found = Folder::workspace().clusterip(&format!("{args} --no-headers")).stdout;
    assert_eq!(found.lines().map(cells).collect::<Vec<_>>(), expected);
}

fn without_colours(text: &str) -> String {
    let mut parts = text.split('\u{1b}');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once('m').expect("a whole sequence").1)
}

#[test]
fn completions_and_the_manual_name_the_command_and_its_options() {
    let rows: [(&str, &[&str]); 4] = [
        ("completions bash", &["_clusterip()", "plan", "init", "validate", "--settings", "--snapshot", "complete -F"]),
        ("completions zsh", &["#compdef clusterip", "plan", "--settings", "--snapshot"]),
        ("completions fish", &["complete -c clusterip", "plan", "-l settings", "-l snapshot"]),
        ("man", &[".TH clusterip", "clusterip\\-init", "clusterip\\-plan", "\\-\\-settings", "Exit status"]),
    ];
    for (args, expected) in rows {
        let done = Folder::workspace().clusterip(args);
        assert_eq!((done.status, done.stderr.as_str()), (0, ""), "{args:?}");
        for part in expected {
            assert!(done.stdout.contains(part), "{args:?}: no {part:?} in\n{}", done.stdout);
        }
    }
}

/// Without a settings file, the pools of K2s are used, which are rarely those of the cluster.
#[test]
fn first_line_says_that_nobody_named_the_pools() {
    enum Told {
        /// In the first line of the table.
        Table,
        /// In a notice.
        Notice,
        No,
    }
    use Told::{No, Notice, Table};
    let folder = Folder::new("default-pools-notice");
    folder.write("config", kubeconfig("http://127.0.0.1:1")).write("in.yaml", service_manifest("web", "{}"));
    folder.write("settings.yaml", "{}").write("snapshot.json", snapshot_of(&[]));
    let rows = [
        ("audit --snapshot snapshot.json", Table),
        ("audit --snapshot snapshot.json -o wide", Table),
        ("audit --snapshot snapshot.json --no-headers", Notice),
        ("audit --snapshot snapshot.json -o json", Notice),
        ("audit --snapshot snapshot.json -q", No),
        ("audit --snapshot snapshot.json -s settings.yaml", No),
        ("plan in.yaml", Table),
        ("plan in.yaml --no-headers", Notice),
        ("plan in.yaml -o json", Notice),
        ("plan in.yaml -o yaml", Notice),
        ("plan in.yaml -q", No),
        ("plan in.yaml -s settings.yaml", No),
        ("plan in.yaml --snapshot snapshot.json", Table),
        // The pools of this cluster would be used, but it can't be reached.
        ("plan in.yaml --cluster", No),
        ("plan in.yaml --kubeconfig config -s settings.yaml", No),
    ];
    for (args, told) in rows {
        let done = folder.run_as_printed(&args.split(' ').collect::<Vec<_>>(), "", &[("KUBECONFIG", "config")]);
        let found = (done.stdout.starts_with(DEFAULT_POOLS), done.stderr.contains(DEFAULT_POOLS));
        let expected = match told {
            Table => (true, false),
            Notice => (false, true),
            No => (false, false),
        };
        assert_eq!(found, expected, "{args:?}: {done:?}");
        assert_eq!((done.stdout + &done.stderr).matches("pools of K2s").count(), usize::from(found.0 || found.1));
    }
}

/// `validation.rs` of the settings tests which pools fit a ServiceCIDR.
#[test]
fn default_pools_that_do_not_fit_the_cluster_are_refused() {
    let kubernetes = |address: &str| {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "kubernetes", "namespace": "default"},
               "spec": {"clusterIP": address, "clusterIPs": [address]}})
    };
    let cases = [
        ("ranges of K2s", service_cidr("kubernetes", "172.21.0.0/16", json!({})), false),
        ("other ranges", service_cidr("kubernetes", "10.96.0.0/12", json!({})), true),
        ("default/kubernetes of K2s", kubernetes("172.21.0.1"), false),
        ("default/kubernetes elsewhere", kubernetes("10.96.0.1"), true),
        ("default/kubernetes after the pools", kubernetes("172.21.2.1"), true),
    ];
    let folder = Folder::new("default-pools-refused");
    folder.write("in.yaml", service_manifest("web", "{}"));
    for (name, object, is_refused) in cases {
        let snapshot = snapshot_of(&[object]);
        folder.write("snapshot.json", &snapshot);
        let audit = folder.clusterip("audit --snapshot snapshot.json");
        assert_eq!(folder.piped("audit --snapshot -", &snapshot), audit, "{name}: standard input");
        for done in [audit, folder.clusterip("plan in.yaml --snapshot snapshot.json")] {
            let remedy = "these are the default pools, those of K2s, and they do not fit the cluster: `clusterip init` \
                          prints settings that do\n";
            assert_eq!((done.status == 2, done.stderr.ends_with(remedy)), (is_refused, is_refused), "{name}: {done:?}");
            let names_them = done.stderr.starts_with("error: settings: the default settings: ");
            assert_eq!((done.stdout.is_empty(), names_them), (is_refused, is_refused), "{name}: {done:?}");
        }
    }
}

#[test]
fn help_has_examples_then_behaviour_then_the_exit_status() {
    for command in ["plan", "evaluate", "init", "validate", "settings", "serve", "move", "audit", "snapshot", "agent"] {
        let help = Folder::workspace().clusterip(&format!("help {command}")).stdout;
        let options = help.find("\nOptions:\n").unwrap();
        let examples = help.find("\nExamples:\n").unwrap_or_else(|| panic!("{command}: no examples: {help}"));
        let status = help.find("\nExit status: 0").unwrap_or_else(|| panic!("{command}: no exit status: {help}"));
        assert!(options < examples && examples < status, "{command}: {help}");
        assert!(!help[status..].trim_end().contains("\n\n"), "{command}: the exit status is not the end: {help}");
        let commands = help[examples..].trim_start().split("\n\n").next().unwrap().lines().skip(1);
        // They survive copy and paste.
        for line in commands.filter(|_| matches!(command, "audit" | "snapshot")) {
            assert!(line.starts_with("  ") && line.chars().count() <= 80, "{command}: a wrapped line: {line}");
            let mut example = line.strip_prefix("    ").into_iter();
            assert!(example.all(|line| line.starts_with("clusterip ") && !line.ends_with('\\')), "{command}: {line}");
        }
    }
}

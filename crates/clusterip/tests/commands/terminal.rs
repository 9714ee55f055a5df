//! What reaches the terminal: colours, text of manifests, completions and the manual.

use serde_json::{Value, json};

use crate::command::{DEFAULT_POOLS, Done, Folder, service_manifest, snapshot_of};

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
        let done = Folder::new("controls").run_with(&["plan", "-"], &input, &[]);
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
    let outputs: [(&[&str], &[&str]); 3] = [
        (&["plan", "manifests"], &["table", "json"]),
        (&["plan", "broken"], &["table"]),
        (&["audit", "--snapshot", "snapshot.json"], &["table", "wide", "name", "json", "html", "junit", "markdown"]),
    ];
    for (command, outputs) in outputs {
        for output in outputs {
            let done = folder.run(&[command, &["-o", output]].concat());
            let shown = done.stdout + &done.stderr;
            assert!(shown.contains("error::"), "{command:?} {output}: {shown}");
            assert!(!shown.contains("##v") && !shown.contains("##["), "{command:?} {output}: {shown}");
            let is_command = |line: &str| line.trim_start().starts_with("::");
            assert!(!shown.lines().any(is_command), "{command:?} {output}: {shown}");
        }
    }
}

#[test]
fn colours_are_used_only_where_wanted() {
    let input = service_manifest("web", "{}");
    let run =
        |environment: &[(&str, &str)]| Folder::new("colours").run_with(&["plan", "-"], &input, environment).stdout;
    let plain = run(&[]);
    assert!(!plain.contains('\u{1b}'), "no terminal: {plain:?}");
    let coloured = run(&[("CLICOLOR_FORCE", "1")]);
    assert!(coloured.contains("\u{1b}[32m172.21.0.173\u{1b}[0m"), "{coloured:?}");
    assert_eq!(without_colours(&coloured), plain, "colours change no column");
    for environment in [&[("NO_COLOR", "1")][..], &[("CLICOLOR", "0")], &[("NO_COLOR", "1"), ("CLICOLOR", "1")]] {
        assert_eq!(run(environment), plain, "{environment:?}");
    }
    for output in ["json", "yaml"] {
        let forced = [("CLICOLOR_FORCE", "1")];
        let done = Folder::new("colours").run_with(&["plan", "-", "-o", output], &input, &forced);
        assert!(!done.stdout.contains('\u{1b}'), "-o {output}: {done:?}");
    }
}

#[test]
fn option_for_colours_overrides_the_environment() {
    let input = service_manifest("web", "{}");
    let run = |color: &str, environment: &[(&str, &str)]| {
        Folder::new("colour-option").run_with(&["plan", "-", "--color", color], &input, environment).stdout
    };
    let plain = run("auto", &[]);
    assert_eq!(run("never", &[("CLICOLOR_FORCE", "1")]), plain);
    let coloured = run("always", &[("NO_COLOR", "1")]);
    assert!(coloured.contains("\u{1b}[32m172.21.0.173\u{1b}[0m"), "{coloured:?}");
    assert_eq!(run("auto", &[("CLICOLOR_FORCE", "1")]), coloured);
}

#[test]
fn quiet_prints_results_and_errors_only() {
    let deployment = "apiVersion: extensions/v1beta1\nkind: Deployment\nmetadata: {name: web}\n";
    let input = service_manifest("web", "{}") + "---\n" + deployment;
    let run = |args: &[&str]| Folder::new("quiet").run_with(args, &input, &[]);
    let loud = run(&["plan", "-"]);
    assert!(loud.stderr.starts_with("warning: "), "{loud:?}");
    assert_eq!(run(&["plan", "-", "-q"]), Done::ok(loud.stdout));
    let failed = run(&["plan", "none.yaml", "--quiet"]);
    assert!(failed.status == 2 && failed.stderr.starts_with("error: "), "{failed:?}");
}

#[test]
fn titles_of_tables_can_be_omitted() {
    let run = |args: &[&str]| Folder::workspace().run(&[&["plan", "examples/nodes"][..], args].concat()).stdout;
    let settings = ["--settings", "examples/settings/nodes.yaml"];
    let titled = run(&settings);
    let titles = |line: &&str| line.starts_with("NAMESPACE  ") || line.starts_with("NODE  ");
    assert_eq!(titled.lines().filter(titles).count(), 2, "{titled}");
    // Without its title, a column may be narrower.
    let cells = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let expected: Vec<_> = titled.lines().filter(|line| !titles(line)).map(cells).collect();
    let found = run(&[&settings[..], &["--no-headers"]].concat());
    assert_eq!(found.lines().map(cells).collect::<Vec<_>>(), expected);
}

fn without_colours(text: &str) -> String {
    let mut parts = text.split('\u{1b}');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once('m').expect("a whole sequence").1)
}

#[test]
fn completions_and_the_manual_name_the_command_and_its_options() {
    let rows: [(&[&str], &[&str]); 4] = [
        (
            &["completions", "bash"],
            &["_clusterip()", "plan", "init", "validate", "--settings", "--snapshot", "complete -F"],
        ),
        (&["completions", "zsh"], &["#compdef clusterip", "plan", "--settings", "--snapshot"]),
        (&["completions", "fish"], &["complete -c clusterip", "plan", "-l settings", "-l snapshot"]),
        (
            &["man"],
            &[
                ".TH clusterip",
                "clusterip\\-init",
                "clusterip\\-plan",
                "clusterip\\-settings",
                "clusterip\\-validate",
                "\\-\\-settings",
                "Exit status",
            ],
        ),
    ];
    for (args, expected) in rows {
        let done = Folder::workspace().run(args);
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
    struct Case {
        args: &'static [&'static str],
        told: Told,
    }
    let folder = Folder::new("default-pools-notice");
    let config = "apiVersion: v1\nkind: Config\ncurrent-context: a\n\
                  contexts: [{name: a, context: {cluster: a, user: a}}]\n\
                  clusters: [{name: a, cluster: {server: 'http://127.0.0.1:1'}}]\n\
                  users: [{name: a, user: {}}]\n";
    folder.write("config", config).write("in.yaml", service_manifest("web", "{}")).write("settings.yaml", "{}");
    folder.write("snapshot.json", snapshot_of(&[]));
    let rows = [
        Case { args: &["audit", "--snapshot", "snapshot.json"], told: Told::Table },
        Case { args: &["audit", "--snapshot", "snapshot.json", "-o", "wide"], told: Told::Table },
        Case { args: &["audit", "--snapshot", "snapshot.json", "--no-headers"], told: Told::Notice },
        Case { args: &["audit", "--snapshot", "snapshot.json", "-o", "json"], told: Told::Notice },
        Case { args: &["audit", "--snapshot", "snapshot.json", "-q"], told: Told::No },
        Case { args: &["audit", "--snapshot", "snapshot.json", "-s", "settings.yaml"], told: Told::No },
        Case { args: &["plan", "in.yaml"], told: Told::Table },
        Case { args: &["plan", "in.yaml", "--no-headers"], told: Told::Notice },
        Case { args: &["plan", "in.yaml", "-o", "json"], told: Told::Notice },
        Case { args: &["plan", "in.yaml", "-o", "yaml"], told: Told::Notice },
        Case { args: &["plan", "in.yaml", "-q"], told: Told::No },
        Case { args: &["plan", "in.yaml", "-s", "settings.yaml"], told: Told::No },
        Case { args: &["plan", "in.yaml", "--snapshot", "snapshot.json"], told: Told::Table },
        Case { args: &["plan", "in.yaml", "--snapshot", "snapshot.json", "-s", "settings.yaml"], told: Told::No },
        // The pools of this cluster would be used, but it can't be reached.
        Case { args: &["plan", "in.yaml", "--cluster"], told: Told::No },
        Case { args: &["plan", "in.yaml", "--kubeconfig", "config", "-s", "settings.yaml"], told: Told::No },
    ];
    for Case { args, told } in rows {
        let done = folder.run_as_printed(args, "", &[("KUBECONFIG", folder.path("config").to_str().unwrap())]);
        let found = (done.stdout.starts_with(DEFAULT_POOLS), done.stderr.contains(DEFAULT_POOLS));
        let expected = match told {
            Told::Table => (true, false),
            Told::Notice => (false, true),
            Told::No => (false, false),
        };
        assert_eq!(found, expected, "{args:?}: {done:?}");
        assert_eq!((done.stdout + &done.stderr).matches("pools of K2s").count(), usize::from(found.0 || found.1));
    }
}

#[test]
fn default_pools_that_do_not_fit_the_cluster_are_refused() {
    struct Case {
        name: &'static str,
        object: Value,
        is_refused: bool,
    }
    let service_cidr = |range: &str| {
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "kubernetes"},
               "spec": {"cidrs": [range]}})
    };
    let kubernetes = |address: &str| {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "kubernetes", "namespace": "default"},
               "spec": {"clusterIP": address, "clusterIPs": [address]}})
    };
    let cases = [
        Case { name: "ranges of K2s", object: service_cidr("172.21.0.0/16"), is_refused: false },
        Case { name: "other ranges", object: service_cidr("10.96.0.0/12"), is_refused: true },
        Case { name: "default/kubernetes of K2s", object: kubernetes("172.21.0.1"), is_refused: false },
        Case { name: "default/kubernetes of a wider range", object: kubernetes("172.16.0.1"), is_refused: false },
        Case { name: "default/kubernetes elsewhere", object: kubernetes("10.96.0.1"), is_refused: true },
        Case { name: "default/kubernetes after the pools", object: kubernetes("172.21.2.1"), is_refused: true },
    ];
    for Case { name, object, is_refused } in cases {
        let folder = Folder::new("default-pools-refused");
        folder.write("in.yaml", service_manifest("web", "{}")).write("snapshot.json", snapshot_of(&[object]));
        for args in [&["audit"][..], &["plan", "in.yaml"]] {
            let done = folder.run(&[args, &["--snapshot", "snapshot.json"]].concat());
            let remedy = "these are the default pools, those of K2s, and they do not fit the cluster: `clusterip init` \
                          prints settings that do";
            assert_eq!((done.status == 2, done.stderr.contains(remedy)), (is_refused, is_refused), "{name}: {done:?}");
            assert_eq!(done.stdout.is_empty(), is_refused, "{name}: {done:?}");
        }
    }
}

#[test]
fn help_has_examples_then_behaviour_then_the_exit_status() {
    for command in ["plan", "evaluate", "init", "validate", "settings", "serve", "move", "audit", "snapshot", "agent"] {
        let help = Folder::workspace().run(&["help", command]).stdout;
        let options = help.find("\nOptions:\n").unwrap();
        let examples = help.find("\nExamples:\n").unwrap_or_else(|| panic!("{command}: no examples: {help}"));
        let status = help.find("\nExit status: 0").unwrap_or_else(|| panic!("{command}: no exit status: {help}"));
        assert!(options < examples && examples < status, "{command}: {help}");
        assert!(!help[status..].trim_end().contains("\n\n"), "{command}: the exit status is not the end: {help}");
    }
}

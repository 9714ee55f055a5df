//! The dashboard and the rules in `deploy/monitoring` query only metrics that `clusterip serve` exposes. To Prometheus,
//! a misspelt metric or label is not an error: the alert just never fires.
//!
//! The exposed metrics are those in docs/metrics.md. A test of the host compares that page with the program.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::collections::{BTreeMap, BTreeSet};

use deploy::{document, read};
use promql_parser::label::{MatchOp, Matcher};
use promql_parser::parser::{self, Expr, LabelModifier, VectorSelector};
use promql_parser::util::{ExprVisitor, walk_expr};
use serde_json::Value;

/// The labels that Prometheus adds to the metrics of each target.
const OF_THE_TARGET: [&str; 1] = ["instance"];

/// An exposed metric: its labels, each with its possible values if the program defines them and not the cluster.
#[derive(Clone, Debug, Default, PartialEq)]
struct Exposed {
    kind: String,
    labels: BTreeMap<String, BTreeSet<String>>,
}

/// The series that Prometheus stores; a histogram consists of three.
fn exposed() -> BTreeMap<String, Exposed> {
    let page = read("docs/metrics.md").unwrap();
    let rows = page.lines().skip_while(|line| !line.starts_with("| `")).take_while(|line| line.starts_with('|'));
    let mut all = BTreeMap::new();
    for row in rows {
        let [_, name, kind, labels, ..] = row.split('|').map(str::trim).collect::<Vec<_>>()[..] else {
            panic!("{row}");
        };
        let name = name.trim_matches('`');
        let mut metric = Exposed { kind: kind.to_owned(), labels: BTreeMap::new() };
        for label in labels.split("; ").filter(|label| !label.is_empty()) {
            let (label, values) = label.split_once(": ").unwrap_or((label, ""));
            let values = values.split(", ").filter(|value| !value.is_empty()).map(str::to_owned).collect();
            metric.labels.insert(label.trim_matches('`').to_owned(), values);
        }
        if kind == "histogram" {
            all.extend(["_sum", "_count"].map(|part| (format!("{name}{part}"), metric.clone())));
            metric.labels.insert("le".to_owned(), BTreeSet::new());
            all.insert(format!("{name}_bucket"), metric);
        } else {
            all.insert(name.to_owned(), metric);
        }
    }
    all
}

/// Collects the mistakes of an expression.
struct Faults<'e> {
    exposed: &'e BTreeMap<String, Exposed>,
    used: BTreeSet<String>,
    found: Vec<String>,
}

impl Faults<'_> {
    fn selector(&mut self, selector: &VectorSelector) {
        let Some(metric) = selector.name.as_deref() else {
            return self.found.push(format!("{selector}: names no metric"));
        };
        let Some(about) = self.exposed.get(metric) else {
            return self.found.push(format!("{metric} is not exposed"));
        };
        self.used.insert(metric.to_owned());
        for matcher in selector.matchers.matchers.iter().chain(selector.matchers.or_matchers.iter().flatten()) {
            self.matcher(metric, about, matcher);
        }
    }

    fn matcher(&mut self, metric: &str, about: &Exposed, matcher: &Matcher) {
        if OF_THE_TARGET.contains(&matcher.name.as_str()) {
            return;
        }
        let Some(values) = about.labels.get(&matcher.name) else {
            return self.found.push(format!("{metric} has no label {}", matcher.name));
        };
        // Every alternative must exist: otherwise a match with another one hides the mistake.
        for wanted in matcher.value.split('|').filter(|_| !values.is_empty()) {
            if !values.contains(wanted) {
                self.found.push(format!("{metric}: {} is never {wanted}", matcher.name));
            }
        }
        if matches!(matcher.op, MatchOp::Equal | MatchOp::NotEqual) && matcher.value.contains('|') {
            self.found.push(format!("{metric}: {} is compared with {} as a whole", matcher.name, matcher.value));
        }
    }

    /// A label to aggregate by must be a label of the aggregated series.
    fn grouping(&mut self, expression: &Expr, modifier: Option<&LabelModifier>) {
        let Some(LabelModifier::Include(labels) | LabelModifier::Exclude(labels)) = modifier else { return };
        let there = labels_of(expression, self.exposed);
        let metric = metrics_of(expression).first().cloned().unwrap_or_default();
        // An unknown metric has been reported already.
        for label in labels.labels.iter().filter(|_| self.exposed.contains_key(&metric)) {
            if !there.contains(label) {
                self.found.push(format!("{metric} has no label {label} to group by"));
            }
        }
    }

    /// A counter has no meaning by itself, because it restarts with the process.
    fn moment(&mut self, selector: &VectorSelector) {
        let about = selector.name.as_ref().and_then(|name| Some((name, self.exposed.get(name)?)));
        if let Some((name, about)) = about.filter(|(_, about)| about.kind != "gauge") {
            self.found.push(format!("{name}, a {}, without its rate", about.kind));
        }
    }

    /// `rate` and similar functions apply only to counters, and a counter needs them.
    fn range(&mut self, function: &str, argument: &Expr) {
        for metric in metrics_of(argument) {
            let Some(about) = self.exposed.get(&metric) else { continue };
            let counts = about.kind != "gauge";
            if matches!(function, "rate" | "irate" | "increase") != counts {
                self.found.push(format!("{function} of {metric}, a {}", about.kind));
            }
        }
    }
}

impl ExprVisitor for Faults<'_> {
    type Error = std::convert::Infallible;

    fn pre_visit(&mut self, expression: &Expr) -> Result<bool, Self::Error> {
        match expression {
            Expr::VectorSelector(selector) => {
                self.selector(selector);
                self.moment(selector);
            }
            Expr::MatrixSelector(matrix) => self.selector(&matrix.vs),
            Expr::Aggregate(aggregate) => self.grouping(&aggregate.expr, aggregate.modifier.as_ref()),
            Expr::Call(call) => {
                for argument in call.args.args.iter().filter(|argument| matches!(***argument, Expr::MatrixSelector(_)))
                {
                    self.range(call.func.name, argument);
                }
            }
            _ => {}
        }
        Ok(true)
    }
}

/// The metrics in an expression, with repetition.
fn metrics_of(expression: &Expr) -> Vec<String> {
    struct Names(Vec<String>);
    impl ExprVisitor for Names {
        type Error = std::convert::Infallible;

        fn pre_visit(&mut self, expression: &Expr) -> Result<bool, Self::Error> {
            match expression {
                Expr::VectorSelector(selector) => self.0.extend(selector.name.clone()),
                Expr::MatrixSelector(matrix) => self.0.extend(matrix.vs.name.clone()),
                _ => {}
            }
            Ok(true)
        }
    }
    let mut names = Names(Vec::new());
    let Ok(_) = walk_expr(&mut names, expression);
    names.0
}

/// The labels of the result of an expression.
fn labels_of(expression: &Expr, exposed: &BTreeMap<String, Exposed>) -> BTreeSet<String> {
    let of_metric = |selector: &VectorSelector| {
        let metric = selector.name.as_ref().and_then(|name| exposed.get(name));
        let own = metric.into_iter().flat_map(|metric| metric.labels.keys().cloned());
        own.chain(OF_THE_TARGET.map(str::to_owned)).collect()
    };
    match expression {
        Expr::VectorSelector(selector) => of_metric(selector),
        Expr::MatrixSelector(matrix) => of_metric(&matrix.vs),
        Expr::Aggregate(aggregate) => match &aggregate.modifier {
            Some(LabelModifier::Include(labels)) => labels.labels.iter().cloned().collect(),
            Some(LabelModifier::Exclude(labels)) => {
                let mut all = labels_of(&aggregate.expr, exposed);
                all.retain(|label| !labels.labels.contains(label));
                all
            }
            None => BTreeSet::new(),
        },
        // The right-hand side of a comparison or match adds no labels.
        Expr::Binary(binary) => match labels_of(&binary.lhs, exposed) {
            none if none.is_empty() => labels_of(&binary.rhs, exposed),
            labels => labels,
        },
        Expr::Paren(paren) => labels_of(&paren.expr, exposed),
        Expr::Unary(unary) => labels_of(&unary.expr, exposed),
        Expr::Subquery(subquery) => labels_of(&subquery.expr, exposed),
        Expr::Call(call) if call.func.name == "absent" => BTreeSet::new(),
        Expr::Call(call) => {
            let mut labels = call.args.last().map(|last| labels_of(&last, exposed)).unwrap_or_default();
            if call.func.name == "histogram_quantile" {
                labels.remove("le");
            }
            labels
        }
        _ => BTreeSet::new(),
    }
}

/// The mistakes of an expression, and of the labels that its `texts` refer to as `before…after`.
fn faults(expression: &str, texts: &[&str], before: &str) -> Vec<String> {
    let exposed = exposed();
    let parsed = match parser::parse(expression) {
        Ok(parsed) => parsed,
        Err(error) => return vec![format!("{expression}: {error}")],
    };
    let mut faults = Faults { exposed: &exposed, used: BTreeSet::new(), found: Vec::new() };
    let Ok(_) = walk_expr(&mut faults, &parsed);
    let mut found = faults.found;
    if faults.used.is_empty() && found.is_empty() {
        found.push(format!("{expression}: names no metric"));
    }
    let labels = labels_of(&parsed, &exposed);
    for shown in texts.iter().flat_map(|text| text.split(before).skip(1)) {
        let label: String = shown.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
        if !labels.contains(&label) {
            found.push(format!("{expression}: its result has no label {label}"));
        }
    }
    found
}

/// The rules by name, each with its expression and its texts.
fn rules() -> Vec<(String, String, Vec<String>)> {
    let rules = document(&read("deploy/monitoring/prometheus-rule.yaml").unwrap()).unwrap();
    let groups = rules["spec"]["groups"].as_array().unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let rules = groups.iter().flat_map(|group| group["rules"].as_array().unwrap());
    rules
        .map(|rule| {
            let texts = rule["annotations"].as_object().unwrap().values().map(text).collect();
            (text(&rule["alert"]), text(&rule["expr"]), texts)
        })
        .collect()
}

/// The panels with a query, by title, each with its expression and its legend.
fn targets() -> Vec<(String, String, String)> {
    let dashboard: Value = serde_json::from_str(&read("deploy/monitoring/clusterip.json").unwrap()).unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut targets = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            // Grafana replaces this variable before it queries.
            let expression = text(&target["expr"]).replace("$__rate_interval", "5m");
            targets.push((text(&panel["title"]), expression, text(&target["legendFormat"])));
        }
    }
    targets
}

#[test]
fn rules_query_only_exposed_metrics() {
    let mut names = BTreeSet::new();
    let mut found = Vec::new();
    for (name, expression, texts) in rules() {
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        found.extend(faults(&expression, &texts, "$labels.").into_iter().map(|fault| format!("{name}: {fault}")));
        assert!(names.insert(name.clone()), "{name} twice");
    }
    assert_eq!(found, Vec::<String>::new());
    let expected = [
        "ClusteripAbsent",
        "ClusteripApiServerSilent",
        "ClusteripCertificateEnds",
        "ClusteripClaimsFail",
        "ClusteripDenials",
        "ClusteripEvaluationErrors",
        "ClusteripExternalAddressesNotHeld",
        "ClusteripExternalPoolNearlyFull",
        "ClusteripExternalServicesWaiting",
        "ClusteripLedgerGrows",
        "ClusteripMovesFail",
        "ClusteripMovesStuck",
        "ClusteripNoLeader",
        "ClusteripNodeAssignmentsFail",
        "ClusteripNodePoolFull",
        "ClusteripNodePoolNearlyFull",
        "ClusteripNodesMisplaced",
        "ClusteripNodesShareBlocks",
        "ClusteripNodesWaiting",
        "ClusteripPoolFull",
        "ClusteripPoolNearlyFull",
        "ClusteripReplicasDisagree",
        "ClusteripServicesMisplaced",
        "ClusteripSettingsRefused",
        "ClusteripSlow",
        "ClusteripStoreStale",
    ];
    assert_eq!(names.iter().map(String::as_str).collect::<Vec<_>>(), expected);
}

#[test]
fn dashboard_queries_only_exposed_metrics() {
    let targets = targets();
    let found: Vec<String> = targets
        .iter()
        .flat_map(|(title, expression, legend)| {
            faults(expression, &[legend], "{{").into_iter().map(move |fault| format!("{title}: {fault}"))
        })
        .collect();
    assert_eq!(found, Vec::<String>::new());
    // The metrics that a dashboard should show.
    let shown: BTreeSet<String> =
        targets.iter().flat_map(|(_, expression, _)| metrics_of(&parser::parse(expression).unwrap())).collect();
    let unseen: Vec<_> = [
        "clusterip_pool_free_addresses",
        "clusterip_admissions_total",
        "clusterip_admission_duration_seconds_bucket",
        "clusterip_evaluation_errors_total",
        "clusterip_ledger_addresses",
        "clusterip_moves_total",
        "clusterip_misplaced_services",
        "clusterip_watch_errors_total",
        "clusterip_certificate_expiry_timestamp_seconds",
        "clusterip_leader",
        "clusterip_node_pool_blocks",
        "clusterip_node_assignments_total",
        "clusterip_nodes_waiting",
        "clusterip_misplaced_nodes",
        "clusterip_external_pool_addresses",
        "clusterip_external_services_waiting",
        "clusterip_external_takeovers_total",
    ]
    .into_iter()
    .filter(|metric| !shown.contains(*metric))
    .collect();
    assert_eq!(unseen, Vec::<&str>::new());
}

#[test]
fn dashboard_layout_and_variables_are_valid() {
    let dashboard: Value = serde_json::from_str(&read("deploy/monitoring/clusterip.json").unwrap()).unwrap();
    let exposed = exposed();
    let mut found = Vec::new();
    let mut ids = BTreeSet::new();
    let mut taken = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        if !ids.insert(panel["id"].as_u64().unwrap()) {
            found.push(format!("{title}: duplicate id"));
        }
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|key| panel["gridPos"][key].as_u64().unwrap());
        if x + w > 24 {
            found.push(format!("{title}: is cut off"));
        }
        let cells = (y..y + h).flat_map(|y| (x..x + w).map(move |x| (x, y)));
        if cells.filter(|&cell| !taken.insert(cell)).count() > 0 {
            found.push(format!("{title}: overlaps another panel"));
        }
        for source in panel["targets"].as_array().into_iter().flatten().chain([panel]) {
            if panel["type"] != "row" && source["datasource"]["uid"] != "${datasource}" {
                found.push(format!("{title}: has a fixed datasource"));
            }
        }
        if panel["type"] != "row" && panel["description"].as_str().is_none_or(str::is_empty) {
            found.push(format!("{title}: has no description"));
        }
    }
    for variable in dashboard["templating"]["list"].as_array().unwrap().iter().filter(|v| v["type"] == "query") {
        let query = variable["query"]["query"].as_str().unwrap();
        let asked = query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')')?.split_once(", "));
        let there = asked.is_some_and(|(metric, label)| {
            exposed.get(metric).is_some_and(|about| about.labels.contains_key(label) || OF_THE_TARGET.contains(&label))
        });
        if !there {
            found.push(format!("{query} has no values"));
        }
    }
    assert_eq!(found, Vec::<String>::new());
}

#[test]
fn every_rule_has_a_test_in_which_it_fires() {
    let tests = document(&read("deploy/monitoring/rules-test.yaml").unwrap()).unwrap();
    let of = |test: &Value| {
        let asked = test["promql_expr_test"].as_array().unwrap().iter();
        let fires = asked.filter(|asked| asked["exp_samples"] != serde_json::json!([])).count();
        (test["name"].as_str().unwrap().to_owned(), fires)
    };
    let tests: Vec<_> = tests["tests"].as_array().unwrap().iter().map(of).collect();
    let well = [("all is well".to_owned(), 0)].into_iter();
    let expected: Vec<_> = well.chain(rules().into_iter().map(|(name, ..)| (name, 1))).collect();
    assert_eq!(tests, expected);
}

#[test]
fn documentation_lists_the_alerts() {
    let page = read("docs/metrics.md").unwrap();
    let listed: BTreeSet<&str> = page.split('`').filter(|word| word.starts_with("Clusterip")).collect();
    let rules = rules();
    assert_eq!(listed, rules.iter().map(|(name, ..)| name.as_str()).collect());
}

#[test]
fn queries_of_unknown_metrics_are_found() {
    struct Case {
        name: &'static str,
        expression: &'static str,
        text: &'static str,
        expected: Vec<&'static str>,
    }
    let cases = [
        Case {
            name: "a metric",
            expression: "clusterip_leaders",
            text: "",
            expected: vec!["clusterip_leaders is not exposed"],
        },
        Case {
            name: "a counter without _total",
            expression: "rate(clusterip_moves[5m])",
            text: "",
            expected: vec!["clusterip_moves is not exposed"],
        },
        Case { name: "no metric", expression: "vector(1)", text: "", expected: vec!["vector(1): names no metric"] },
        Case {
            name: "a label",
            expression: r#"clusterip_leader{pool="linux"}"#,
            text: "",
            expected: vec!["clusterip_leader has no label pool"],
        },
        Case {
            name: "a value",
            expression: r#"clusterip_misplaced_services{reason=~"moving|lost"}"#,
            text: "",
            expected: vec!["clusterip_misplaced_services: reason is never lost"],
        },
        Case {
            name: "alternatives without a regular expression",
            expression: r#"clusterip_misplaced_services{reason="moving|never"}"#,
            text: "",
            expected: vec!["clusterip_misplaced_services: reason is compared with moving|never as a whole"],
        },
        Case {
            name: "a label to group by, in a nested expression",
            expression: "1 - (min by (kind) (clusterip_pool_free_addresses) / 2)",
            text: "",
            expected: vec!["clusterip_pool_free_addresses has no label kind to group by"],
        },
        Case {
            name: "a quantile without its buckets",
            expression: "histogram_quantile(0.9, sum by (le) (rate(clusterip_evaluation_duration_seconds_sum[5m])))",
            text: "",
            expected: vec!["clusterip_evaluation_duration_seconds_sum has no label le to group by"],
        },
        Case {
            name: "the rate of a gauge",
            expression: "rate(clusterip_ledger_addresses[5m])",
            text: "",
            expected: vec!["rate of clusterip_ledger_addresses, a gauge"],
        },
        Case {
            name: "a counter without its rate",
            expression: "sum(clusterip_evaluation_errors_total) > 0",
            text: "",
            expected: vec!["clusterip_evaluation_errors_total, a counter, without its rate"],
        },
        Case {
            name: "a text with a label that is aggregated away",
            expression: "sum by (pool) (clusterip_pool_free_addresses) == 0",
            text: "{{pool}} {{family}}",
            expected: vec!["sum by (pool) (clusterip_pool_free_addresses) == 0: its result has no label family"],
        },
        Case {
            name: "no mistakes",
            expression: "sum by (pool) (clusterip_pool_free_addresses) == 0",
            text: "{{pool}}",
            expected: vec![],
        },
    ];
    for Case { name, expression, text, expected } in cases {
        assert_eq!(faults(expression, &[text], "{{"), expected, "{name}");
    }
}

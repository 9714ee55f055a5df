//! Finds the mistakes of a PromQL expression: unknown metrics and labels, and counters without their rate.

use std::collections::{BTreeMap, BTreeSet};

use promql_parser::label::{MatchOp, Matcher};
use promql_parser::parser::{self, Expr, LabelModifier, VectorSelector};
use promql_parser::util::{ExprVisitor, walk_expr};

use super::exposed_metrics::{Exposed, OF_THE_TARGET, exposed};

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
    let text = expression.to_string();
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("clusterip_")).map(str::to_owned).collect()
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
pub fn faults(expression: &str, texts: &[&str], before: &str) -> Vec<String> {
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

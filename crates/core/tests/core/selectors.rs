//! Kubernetes label selectors.

use clusterip_core::label_selector::{LabelSelector, Labels, MAX_LABELS, Operator, Requirement, includes, selects};
use proptest::prelude::*;

use crate::support::cases;

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn requirement(key: &str, operator: Operator, values: &[&str]) -> Requirement {
    Requirement { key: key.into(), operator, values: values.iter().map(|&value| value.to_owned()).collect() }
}

#[test]
fn operators_treat_present_and_absent_labels_like_kubernetes() {
    struct Case {
        operator: Operator,
        values: &'static [&'static str],
        /// Whether each of `objects` matches.
        expected: [bool; 4],
    }
    use Operator::{DoesNotExist, Exists, In, NotIn};
    let rows = [
        Case { operator: In, values: &["a", "c"], expected: [true, false, false, false] },
        Case { operator: In, values: &[""], expected: [false, false, true, false] },
        Case { operator: NotIn, values: &["a", "c"], expected: [false, true, true, true] },
        Case { operator: NotIn, values: &[""], expected: [true, true, false, true] },
        Case { operator: Exists, values: &[], expected: [true, true, true, false] },
        Case { operator: DoesNotExist, values: &[], expected: [false, false, false, true] },
    ];
    let objects = [labels(&[("team", "a")]), labels(&[("team", "b")]), labels(&[("team", "")]), labels(&[("x", "a")])];
    for Case { operator, values, expected } in rows {
        let selector = LabelSelector {
            match_labels: Labels::new(),
            match_expressions: vec![requirement("team", operator, values)],
        };
        for (object, expected) in objects.iter().zip(expected) {
            assert_eq!(selector.matches(object), expected, "{operator:?} {values:?} of {object:?}");
        }
    }
}

#[test]
fn every_requirement_must_match_and_an_empty_selector_matches_everything() {
    struct Case {
        name: &'static str,
        object: Labels,
        expected: bool,
    }
    let selector = LabelSelector {
        match_labels: labels(&[("team", "a")]),
        match_expressions: vec![
            requirement("tier", Operator::In, &["web", "db"]),
            requirement("old", Operator::DoesNotExist, &[]),
        ],
    };
    let rows = [
        Case {
            name: "all requirements match",
            object: labels(&[("team", "a"), ("tier", "db"), ("more", "x")]),
            expected: true,
        },
        Case { name: "matchLabels differ", object: labels(&[("team", "b"), ("tier", "db")]), expected: false },
        Case { name: "matchLabels are missing", object: labels(&[("tier", "db")]), expected: false },
        Case { name: "the first expression fails", object: labels(&[("team", "a"), ("tier", "x")]), expected: false },
        Case {
            name: "the last expression fails",
            object: labels(&[("team", "a"), ("tier", "db"), ("old", "")]),
            expected: false,
        },
        Case { name: "no labels", object: Labels::new(), expected: false },
    ];
    for Case { name, object, expected } in rows {
        assert_eq!(selector.matches(&object), expected, "{name}");
        assert!(LabelSelector::default().matches(&object), "{name}: the empty selector");
    }
    assert!(LabelSelector::default().is_empty());
    assert!(!selector.is_empty());
    assert!(!LabelSelector { match_labels: Labels::new(), ..selector }.is_empty());
}

#[test]
fn operator_names_are_those_of_kubernetes() {
    for name in Operator::NAMES {
        let operator = Operator::parse(name).unwrap();
        assert_eq!(format!("{operator:?}"), name);
        assert_eq!(operator.takes_values(), name.ends_with("In"), "{name}");
    }
    assert_eq!(["in", "Equals", "Gt", ""].map(Operator::parse), [None; 4]);
}

/// The definition of the API reference: is there a label with this key, and what is its value?
fn holds(requirement: &Requirement, object: &Labels) -> bool {
    let present = object.iter().any(|(key, _)| *key == requirement.key);
    let listed = object
        .iter()
        .any(|(key, value)| *key == requirement.key && requirement.values.iter().any(|wanted| wanted == value));
    match requirement.operator {
        Operator::In => listed,
        // "NotIn" also selects objects without the key.
        Operator::NotIn => !listed,
        Operator::Exists => present,
        Operator::DoesNotExist => !present,
    }
}

// Few keys and values, so that they often match.
fn some_labels() -> impl Strategy<Value = Labels> {
    prop::collection::btree_map("[abc]", "[xyz]?", 0..4)
}

fn some_selector() -> impl Strategy<Value = LabelSelector> {
    let operator = prop::sample::select(Operator::NAMES.map(|name| Operator::parse(name).unwrap()).to_vec());
    let requirement = ("[abcd]", operator, prop::collection::vec("[xyz]?", 0..3))
        .prop_map(|(key, operator, values)| Requirement { key, operator, values });
    (prop::collection::btree_map("[abc]", "[xyz]?", 0..2), prop::collection::vec(requirement, 0..3))
        .prop_map(|(match_labels, match_expressions)| LabelSelector { match_labels, match_expressions })
}

proptest! {
    #![proptest_config(cases(2000))]

    #[test]
    fn selector_matches_if_each_requirement_matches(selector in some_selector(), object in some_labels()) {
        let equalities = selector.match_labels.iter().map(|(key, value)| requirement(key, Operator::In, &[value]));
        let all: Vec<Requirement> = equalities.chain(selector.match_expressions.clone()).collect();
        prop_assert_eq!(selector.matches(&object), all.iter().all(|requirement| holds(requirement, &object)));
    }

    #[test]
    fn service_selects_pods_that_have_all_of_its_labels(wanted in some_labels(), object in some_labels()) {
        let missing = wanted.iter().any(|(key, value)| !object.iter().any(|label| label == (key, value)));
        prop_assert_eq!(includes(&object, &wanted), !missing);
    }
}

/// Only the first labels of a Pod by key count, so a cache need not keep more. A selector with more labels selects no
/// Pod.
#[test]
fn service_selects_by_the_first_labels_of_a_pod() {
    struct Case {
        name: &'static str,
        selector: Labels,
        pod: Labels,
        expected: bool,
    }
    let many =
        |count: usize| -> Labels { (0..count).map(|number| (format!("k{number:03}"), "v".to_owned())).collect() };
    let rows = [
        Case { name: "a label", selector: labels(&[("k000", "v")]), pod: many(1), expected: true },
        Case { name: "another value", selector: labels(&[("k000", "w")]), pod: many(1), expected: false },
        Case {
            name: "the last label that counts",
            selector: labels(&[("k063", "v")]),
            pod: many(MAX_LABELS + 1),
            expected: true,
        },
        Case {
            name: "the first label that does not count",
            selector: labels(&[("k064", "v")]),
            pod: many(MAX_LABELS + 1),
            expected: false,
        },
        Case { name: "as many labels as count", selector: many(MAX_LABELS), pod: many(MAX_LABELS + 1), expected: true },
        Case {
            name: "more labels than count",
            selector: many(MAX_LABELS + 1),
            pod: many(MAX_LABELS + 1),
            expected: false,
        },
    ];
    for Case { name, selector, pod, expected } in rows {
        assert_eq!(selects(&selector, &pod), expected, "{name}");
    }
}

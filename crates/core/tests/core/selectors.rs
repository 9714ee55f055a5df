//! Kubernetes label selectors.

use clusterip_core::label_selector::{LabelSelector, Labels, MAX_LABELS, Operator, Requirement, includes, selects};
use proptest::prelude::*;

use crate::support::{cases, labelled, labels, requiring};

#[test]
fn selector_without_requirements_is_empty() {
    assert!(LabelSelector::default().is_empty());
    assert!(!labelled("team", "a").is_empty());
    assert!(!requiring("team", Operator::Exists, &[]).is_empty());
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
        let equalities = selector.match_labels.iter().map(|(key, value)| requiring(key, Operator::In, &[value]));
        let equalities = equalities.flat_map(|selector| selector.match_expressions);
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
    let many =
        |count: usize| -> Labels { (0..count).map(|number| (format!("k{number:03}"), "v".to_owned())).collect() };
    let rows = [
        (labels(&[("k000", "v")]), many(1), true),
        (labels(&[("k000", "w")]), many(1), false),
        // The last label that counts, and the first one that does not.
        (labels(&[("k063", "v")]), many(MAX_LABELS + 1), true),
        (labels(&[("k064", "v")]), many(MAX_LABELS + 1), false),
        (many(MAX_LABELS), many(MAX_LABELS + 1), true),
        (many(MAX_LABELS + 1), many(MAX_LABELS + 1), false),
    ];
    for (selector, pod, expected) in rows {
        assert_eq!(selects(&selector, &pod), expected, "{selector:?} of {} labels", pod.len());
    }
}

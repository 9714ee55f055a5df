//! How each annotation is parsed, and its limits.

use clusterip_core::annotations::{
    self, FOREIGN_ANNOTATIONS, MOVE_ANNOTATION, MOVING_ANNOTATION, Move, NODE_SELECTOR_ANNOTATION, OS_ANNOTATION,
    POOL_ANNOTATION, RECORD_ANNOTATION, REQUESTED_ADDRESS_ANNOTATION, claimed_addresses, has_parser,
    in_moving_annotation, in_service_annotation, is_moving, node_selector, recorded_addresses, service_of, shortened,
};
use clusterip_core::label_selector::Labels;
use serde_json::{Value, json};

use crate::support::{ips, labels};

#[test]
fn move_annotation_accepts_now_and_never() {
    for (text, expected) in
        [("now", Some(Move::Now)), ("never", Some(Move::Never)), ("", None), ("Now", None), ("now ", None)]
    {
        assert_eq!(Move::parse(text), expected, "{text:?}");
        let service = json!({"metadata": {"annotations": {MOVE_ANNOTATION: text}}});
        assert_eq!(Move::of(&service), expected, "{text:?} of a Service");
    }
    for service in [json!({}), json!({"metadata": {"annotations": {MOVE_ANNOTATION: 1}}})] {
        assert_eq!(Move::of(&service), None, "{service}");
    }
}

#[test]
fn service_is_marked_as_moving_by_any_value() {
    let marked = |value: Value| json!({"metadata": {"annotations": {MOVING_ANNOTATION: value}}});
    for service in [marked(json!("{}")), marked(json!("")), marked(json!(1))] {
        assert!(is_moving(&service), "{service}");
    }
    for service in [json!({}), json!({"metadata": {"annotations": {MOVE_ANNOTATION: "now"}}})] {
        assert!(!is_moving(&service), "{service}");
    }
}

#[test]
fn service_annotation_is_read_as_it_was_written() {
    for (namespace, name) in [("shop", "web"), ("shop", "")] {
        assert_eq!(service_of(&in_service_annotation(namespace, name)), Some((namespace, name)));
    }
    assert_eq!(service_of("web"), None);
}

#[test]
fn moving_annotation_has_the_addresses_before_and_after_the_move() {
    let text = in_moving_annotation(&ips(&["10.0.0.1", "fd00::1"]), &ips(&["10.0.1.1"]));
    assert_eq!(text, r#"{"from":["10.0.0.1","fd00::1"],"to":["10.0.1.1"]}"#);
}

#[test]
fn address_lists_are_limited_and_other_text_is_ignored() {
    let spaces = format!("10.0.9.1{}", " ".repeat(300));
    for (text, recorded, claimed) in [
        ("", &[][..], &[][..]),
        (" 10.0.9.1 ", &["10.0.9.1"], &["10.0.9.1"]),
        ("fd00::1,10.0.9.1", &["fd00::1", "10.0.9.1"], &["fd00::1", "10.0.9.1"]),
        ("10.0.9.1,10.0.9.2", &["10.0.9.1"], &["10.0.9.1", "10.0.9.2"]),
        ("10.0.9.1,10.0.9.2,fd00::1", &["10.0.9.1", "fd00::1"], &["10.0.9.1", "10.0.9.2"]),
        ("10.0.9.1,10.0.9.01,fd00::1", &["10.0.9.1", "fd00::1"], &["10.0.9.1", "fd00::1"]),
        ("x,,10.0.9.1,y", &["10.0.9.1"], &["10.0.9.1"]),
        ("::ffff:10.0.9.1", &["10.0.9.1"], &["10.0.9.1"]),
        (&spaces, &[], &[]),
    ] {
        assert_eq!(recorded_addresses(text), ips(recorded), "{text:?}, recorded");
        assert_eq!(claimed_addresses(text), ips(claimed), "{text:?}, claimed");
    }
}

#[test]
fn node_selector_annotation_is_parsed_into_labels() {
    let too_long = format!("a=b,{}", "c=d,".repeat(2000));
    for (text, expected, bad) in [
        ("a=b, c==d ,e=", &[("a", "b"), ("c", "d"), ("e", "")][..], 0),
        ("a=b,c", &[("a", "b")], 1),
        ("", &[], 0),
        (&too_long, &[], 1),
    ] {
        let (found, parts) = node_selector(text);
        assert_eq!((found, parts.len()), (labels(expected), bad), "{text}");
    }
}

/// A cache may store the shortened value, so each parser must return the same for both.
#[test]
fn shortened_value_parses_like_the_whole_value() {
    let keys = [
        MOVE_ANNOTATION,
        MOVING_ANNOTATION,
        NODE_SELECTOR_ANNOTATION,
        OS_ANNOTATION,
        POOL_ANNOTATION,
        RECORD_ANNOTATION,
        REQUESTED_ADDRESS_ANNOTATION,
    ];
    let mut texts: Vec<String> = Vec::new();
    for length in [0, 1, 15, 16, 17, 62, 63, 64, 65, 254, 255, 256, 257, 1023, 1024, 1025, 4095, 4096, 4097, 100_000] {
        for of in ["x", "é", "10.0.0.1,", "a=b,", "{\"from\":[]} "] {
            texts.push(of.chars().cycle().take(length).collect());
        }
    }
    for key in keys.into_iter().chain(FOREIGN_ANNOTATIONS) {
        assert!(has_parser(key), "{key}");
        for text in &texts {
            let short = shortened(key, text).unwrap();
            assert!(short.chars().count() <= 4096 && short.len() <= text.len() + 3, "{key}: {}", short.len());
            assert_eq!(shortened(key, &short).unwrap(), short, "{key}: {text}");
            let of = |text: &str| Labels::from([(key.to_owned(), text.to_owned())]);
            let read = |text: &str| -> String {
                let (labels, bad) = node_selector(text);
                match key {
                    OS_ANNOTATION => format!("{:?}", annotations::os(&of(text).into())),
                    POOL_ANNOTATION => format!("{:?}", annotations::pool(&of(text).into())),
                    MOVE_ANNOTATION => format!("{:?}", Move::parse(text)),
                    // No decision reads its value.
                    MOVING_ANNOTATION => String::new(),
                    NODE_SELECTOR_ANNOTATION => format!("{labels:?} {}", bad.len()),
                    RECORD_ANNOTATION | REQUESTED_ADDRESS_ANNOTATION => format!("{:?}", recorded_addresses(text)),
                    _ => format!("{:?}", claimed_addresses(text)),
                }
            };
            assert_eq!(read(text), read(&short), "{key}: {text}");
        }
    }
    assert_eq!(shortened("example.com/other", "x"), None);
    assert!(!has_parser("example.com/other"));
}

//! How each annotation is parsed, and its limits.

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use std::net::IpAddr;

use crate::support::ip;
use clusterip_core::annotations::{
    self, ASKED_ANNOTATION, FOREIGN_ANNOTATIONS, MOVE_ANNOTATION, MOVING_ANNOTATION, Move, Moving, MovingError,
    NODE_SELECTOR_ANNOTATION, OS_ANNOTATION, POOL_ANNOTATION, RECORD_ANNOTATION, claimed_addresses, node_selector,
    recorded_addresses, shortened,
};
use clusterip_core::label_selector::Labels;

fn ips(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| ip(text)).collect()
}

#[test]
fn move_annotation_accepts_now_and_never() {
    for (text, expected) in
        [("now", Some(Move::Now)), ("never", Some(Move::Never)), ("", None), ("Now", None), ("now ", None)]
    {
        assert_eq!(Move::parse(text), expected, "{text:?}");
    }
}

#[test]
fn moving_annotation_accepts_only_what_a_move_writes() {
    let both = Moving { from: ips(&["10.0.0.1", "fd00::1"]), to: ips(&["10.0.1.1"]) };
    assert_eq!(both.text(), r#"{"from":["10.0.0.1","fd00::1"],"to":["10.0.1.1"]}"#);
    let many: Vec<String> = (0..40).map(|last| format!("\"10.0.0.{last}\"")).collect();
    let many = format!("{{\"from\": [{}]}}", many.join(","));
    let long = format!("{{\"from\": [], \"why\": \"{}\"}}", "x".repeat(1024));
    let rows: [(&str, &str, Result<Moving, MovingError>); 12] = [
        ("its own text", &both.text(), Ok(both.clone())),
        ("nothing", "{}", Ok(Moving::default())),
        ("other fields", r#"{"from": ["10.0.0.1"], "phase": "placed", "spec": {}}"#, {
            Ok(Moving { from: ips(&["10.0.0.1"]), to: Vec::new() })
        }),
        ("forty addresses", &many, Err(MovingError::TooMany("from"))),
        ("two of a family", r#"{"to": ["10.0.0.1", "10.0.0.2"]}"#, Err(MovingError::TooMany("to"))),
        ("no address", r#"{"to": ["x"]}"#, Err(MovingError::NotAddresses("to"))),
        ("a number", r#"{"from": [1]}"#, Err(MovingError::NotAddresses("from"))),
        ("null", r#"{"from": null}"#, Err(MovingError::NotAddresses("from"))),
        ("no list", r#"{"from": "10.0.0.1"}"#, Err(MovingError::NotAddresses("from"))),
        ("a list", "[]", Err(MovingError::NotAnObject)),
        ("no JSON", "{", Err(MovingError::NotAnObject)),
        ("too long", &long, Err(MovingError::TooLong)),
    ];
    for (name, text, expected) in rows {
        assert_eq!(Moving::parse(text), expected, "{name}");
    }
}

#[test]
fn address_lists_are_limited_and_other_text_is_ignored() {
    let spaces = format!("10.0.9.1{}", " ".repeat(300));
    let rows: [(&str, &str, &[&str], &[&str]); 9] = [
        ("none", "", &[], &[]),
        ("one", " 10.0.9.1 ", &["10.0.9.1"], &["10.0.9.1"]),
        ("one of each family", "fd00::1,10.0.9.1", &["fd00::1", "10.0.9.1"], &["fd00::1", "10.0.9.1"]),
        ("two of a family", "10.0.9.1,10.0.9.2", &["10.0.9.1"], &["10.0.9.1", "10.0.9.2"]),
        ("two of a family, and one", "10.0.9.1,10.0.9.2,fd00::1", &["10.0.9.1", "fd00::1"], &["10.0.9.1", "10.0.9.2"]),
        ("one twice", "10.0.9.1,10.0.9.01,fd00::1", &["10.0.9.1", "fd00::1"], &["10.0.9.1", "fd00::1"]),
        ("between other texts", "x,,10.0.9.1,y", &["10.0.9.1"], &["10.0.9.1"]),
        ("in disguise", "::ffff:10.0.9.1", &["10.0.9.1"], &["10.0.9.1"]),
        ("in a text that is too long", &spaces, &[], &[]),
    ];
    for (name, text, recorded, claimed) in rows {
        assert_eq!(recorded_addresses(text), ips(recorded), "{name}, recorded");
        assert_eq!(claimed_addresses(text), ips(claimed), "{name}, claimed");
    }
}

#[test]
fn node_selector_annotation_is_parsed_into_labels() {
    let long = format!("a=b,{}", "c=d,".repeat(2000));
    type Row<'a> = (&'static str, &'a str, &'static [(&'static str, &'static str)], usize);
    let rows: [Row<'_>; 4] = [
        ("labels", "a=b, c==d ,e=", &[("a", "b"), ("c", "d"), ("e", "")], 0),
        ("a part without a value", "a=b,c", &[("a", "b")], 1),
        ("nothing", "", &[], 0),
        ("a text that is too long", &long, &[], 1),
    ];
    for (name, text, expected, bad) in rows {
        let expected: Labels = expected.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        let (labels, parts) = node_selector(text);
        assert_eq!((labels, parts.len()), (expected, bad), "{name}");
    }
}

/// A cache may store the shortened value, so each parser must return the same for both.
#[test]
fn shortened_value_parses_like_the_whole_value() {
    let keys = [
        ASKED_ANNOTATION,
        MOVE_ANNOTATION,
        MOVING_ANNOTATION,
        NODE_SELECTOR_ANNOTATION,
        OS_ANNOTATION,
        POOL_ANNOTATION,
        RECORD_ANNOTATION,
    ];
    let mut texts: Vec<String> = Vec::new();
    for length in [0, 1, 15, 16, 17, 62, 63, 64, 65, 254, 255, 256, 257, 1023, 1024, 1025, 4095, 4096, 4097, 100_000] {
        for of in ["x", "é", "10.0.0.1,", "a=b,", "{\"from\":[]} "] {
            texts.push(of.chars().cycle().take(length).collect());
        }
    }
    for key in keys.into_iter().chain(FOREIGN_ANNOTATIONS) {
        for text in &texts {
            let short = shortened(key, text).unwrap();
            assert!(short.chars().count() <= 4096 && short.len() <= text.len() + 3, "{key}: {}", short.len());
            assert_eq!(shortened(key, &short).unwrap(), short, "{key}: {text}");
            let of = |text: &str| Labels::from([(key.to_owned(), text.to_owned())]);
            let read = |text: &str| -> String {
                let (labels, bad) = node_selector(text);
                match key {
                    OS_ANNOTATION => format!("{:?}", annotations::os(&of(text))),
                    POOL_ANNOTATION => format!("{:?}", annotations::pool(&of(text))),
                    MOVE_ANNOTATION => format!("{:?}", Move::parse(text)),
                    MOVING_ANNOTATION => format!("{:?}", Moving::parse(text)),
                    NODE_SELECTOR_ANNOTATION => format!("{labels:?} {}", bad.len()),
                    RECORD_ANNOTATION | ASKED_ANNOTATION => format!("{:?}", recorded_addresses(text)),
                    _ => format!("{:?}", claimed_addresses(text)),
                }
            };
            assert_eq!(read(text), read(&short), "{key}: {text}");
        }
    }
    assert_eq!(shortened("example.com/other", "x"), None);
}

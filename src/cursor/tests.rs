#![allow(clippy::unwrap_used)]
use serde::de::IgnoredAny;

use super::*;

#[test]
fn skips_exactly_what_serde_json_accepts() {
    let rows = [
        "null",
        "true",
        " false ",
        "0",
        "-0.5e+10",
        "12E3",
        r#""""#,
        r#""longer than eight bytes, \"quoted\", \u00e9 and ü""#,
        r#"{"a":[1,{"b":null},[]],"c":{}}"#,
        " { \"a\" :\t[ 1 ,\r\n2 ] } ",
        "",
        "nul",
        "nulll",
        "01",
        "1.",
        ".5",
        "-",
        "1e",
        "+1",
        "[1,]",
        "[,1]",
        "[1 2]",
        r#"{"a"}"#,
        r#"{"a":}"#,
        r#"{"a":1,}"#,
        r#"{"a":1]"#,
        "[1}",
        "{1:2}",
        r#""open"#,
        r#""bad \x escape""#,
        r#""bad \u00g0 escape""#,
        "\"a\u{1}b\"",
        "\"line\nend, behind more than eight bytes\"",
        "[1] 2",
    ];
    for json in rows {
        let mut cursor = Cursor::new(json.as_bytes());
        let ours = cursor.skip().and_then(|()| cursor.end()).is_ok();
        assert_eq!(ours, serde_json::from_str::<IgnoredAny>(json).is_ok(), "{json:?}");
    }
}

#[test]
fn nesting_is_limited_without_recursion() {
    for (depth, passes) in [(127, true), (128, false), (1_000_000, false)] {
        let json = "[".repeat(depth) + &"]".repeat(depth);
        assert_eq!(Cursor::new(json.as_bytes()).skip().is_ok(), passes, "{depth}");
    }
}

fn wanted(key: &[u8]) -> Option<&'static str> {
    ["spec", "name"].into_iter().find(|wanted| wanted.as_bytes() == key)
}

#[test]
fn wanted_fields_are_found_in_any_order() {
    let json = br#"{"x":{"name":1},"n\u0061me":"a\u0062","y":[],"spec":{"name":2}}"#;
    let mut cursor = Cursor::new(json);
    let mut object = cursor.object().unwrap().unwrap();
    let mut next = |cursor: &mut Cursor<'_>| cursor.field(&mut object, wanted);
    assert_eq!(next(&mut cursor), Ok(Some("name")));
    assert_eq!(cursor.text().unwrap().read().unwrap(), "ab");
    assert_eq!(next(&mut cursor), Ok(Some("spec")));
    assert_eq!(cursor.raw(), Ok(&br#"{"name":2}"#[..]));
    assert_eq!(next(&mut cursor), Ok(None));
    assert_eq!(cursor.end(), Ok(()));
}

#[test]
fn error_names_the_expected_text_and_the_byte() {
    let mut cursor = Cursor::new(br#"{"spec": {}}"#);
    let mut object = cursor.object().unwrap().unwrap();
    cursor.field(&mut object, wanted).unwrap();
    let error = cursor.list(&mut |_| -> Result<(), Unexpected> { Ok(()) }).unwrap_err();
    assert_eq!(error.to_string(), "expected a list at byte 9");
}

//! Manifests of any form: `plan -o yaml` changes nothing but the addresses, and planning its output changes nothing.

use proptest::prelude::*;
use serde_json::Value;

use crate::support::{parse, plan, source};

/// A document, with the order of its fields and the text of its scalars.
#[derive(Clone, Debug)]
enum Tree {
    Scalar(String),
    List(Vec<Tree>),
    Map(Vec<(&'static str, Tree)>),
    /// A value that was filled in: no comment follows it.
    Filled(String),
}

/// How a document is written.
#[derive(Clone, Copy, Debug)]
enum Style {
    Block { indent: usize, comments: bool },
    Flow,
    Lines,
}

impl Tree {
    fn text(text: &str) -> Self {
        Self::Scalar(text.to_owned())
    }

    fn write(&self, style: Style) -> String {
        let mut text = String::new();
        match style {
            Style::Block { .. } => self.block(style, 0, &mut text),
            Style::Flow => text = self.flow() + "\n",
            Style::Lines => {
                self.lines(0, &mut text);
                text.push('\n');
            }
        }
        text
    }

    fn block(&self, style: Style, column: usize, text: &mut String) {
        let Style::Block { indent, comments } = style else { unreachable!() };
        let (comment, pad) = (if comments { " # ü {clusterIP: ''}" } else { "" }, " ".repeat(column));
        match self {
            Self::Map(fields) => {
                for (position, (key, value)) in fields.iter().enumerate() {
                    // The first field of an item follows its dash.
                    let pad = if position == 0 && text.ends_with("- ") { "" } else { &pad };
                    match value {
                        Self::Scalar(value) if value.is_empty() => text.push_str(&format!("{pad}{key}:{comment}\n")),
                        Self::Scalar(value) => text.push_str(&format!("{pad}{key}: {value}{comment}\n")),
                        Self::Filled(value) => text.push_str(&format!("{pad}{key}: {value}\n")),
                        Self::List(items) if items.is_empty() => text.push_str(&format!("{pad}{key}: []{comment}\n")),
                        Self::List(_) => {
                            text.push_str(&format!("{pad}{key}:{comment}\n"));
                            value.block(style, column, text);
                        }
                        Self::Map(_) => {
                            text.push_str(&format!("{pad}{key}:{comment}\n"));
                            value.block(style, column + indent, text);
                        }
                    }
                }
            }
            Self::List(items) => {
                for item in items {
                    text.push_str(&format!("{pad}- "));
                    item.block(style, column + 2, text);
                }
            }
            Self::Scalar(value) | Self::Filled(value) => text.push_str(&format!("{value}{comment}\n")),
        }
    }

    fn flow(&self) -> String {
        let all = |parts: Vec<String>| parts.join(", ");
        match self {
            Self::Scalar(value) => json_scalar(value),
            Self::Filled(value) => value.clone(),
            Self::List(items) => format!("[{}]", all(items.iter().map(Self::flow).collect())),
            Self::Map(fields) => {
                format!(
                    "{{{}}}",
                    all(fields.iter().map(|(key, value)| format!("\"{key}\": {}", value.flow())).collect())
                )
            }
        }
    }

    fn lines(&self, column: usize, text: &mut String) {
        let Self::Map(fields) = self else { return text.push_str(&self.flow()) };
        text.push('{');
        for (position, (key, value)) in fields.iter().enumerate() {
            let comma = if position > 0 { "," } else { "" };
            text.push_str(&format!("{comma}\n{}\"{key}\": ", " ".repeat(column + 2)));
            value.lines(column + 2, text);
        }
        text.push_str(&format!("\n{}}}", " ".repeat(column)));
    }

    fn to_value(&self) -> Value {
        match self {
            Self::Scalar(value) | Self::Filled(value) => serde_json::from_str(&json_scalar(value)).unwrap(),
            Self::List(items) => items.iter().map(Self::to_value).collect(),
            Self::Map(fields) => fields.iter().map(|(key, value)| ((*key).to_owned(), value.to_value())).collect(),
        }
    }

    fn field(&mut self, name: &str) -> Option<&mut Self> {
        let Self::Map(fields) = self else { return None };
        fields.iter_mut().find(|(key, _)| *key == name).map(|(_, value)| value)
    }

    /// Fills addresses in where the program should do it.
    fn fill(&mut self, addresses: &[String], style: Style) {
        let quoted = |address: &String| format!("\"{address}\"");
        let primary = match style {
            Style::Block { .. } if !addresses[0].contains(':') => addresses[0].clone(),
            _ => quoted(&addresses[0]),
        };
        let all = format!("[{}]", addresses.iter().map(quoted).collect::<Vec<_>>().join(", "));
        let mut added = Vec::new();
        for (key, value) in [("clusterIP", Some(primary)), ("clusterIPs", (addresses.len() > 1).then_some(all))] {
            match (self.field(key), value) {
                (Some(place), Some(value)) => *place = Self::Scalar(value),
                (None, Some(value)) => added.push((key, Self::Filled(value))),
                (_, None) => {}
            }
        }
        if let Self::Map(fields) = self {
            fields.splice(0..0, added);
        }
    }
}

/// A YAML scalar as JSON.
fn json_scalar(text: &str) -> String {
    match text {
        "" | "~" => "null".to_owned(),
        "''" => "\"\"".to_owned(),
        text if text.starts_with(['"', '[']) || text == "null" || text.parse::<u16>().is_ok() => text.to_owned(),
        text => format!("\"{text}\""),
    }
}

/// The fields of a Service's spec, in any order. `number` makes addresses differ.
fn spec(number: usize) -> impl Strategy<Value = Tree> {
    let by_hand = format!("10.0.0.{}", 200 + number);
    let cluster_ip = prop_oneof![
        4 => Just(None),
        4 => prop::sample::select(vec!["''", "", "null", "~", "\"\""]).prop_map(|text| Some(text.to_owned())),
        1 => Just(Some("None".to_owned())),
        1 => Just(Some(by_hand)),
    ];
    let families = prop::sample::select(vec![
        ("", ""),
        ("", "IPv6"),
        ("PreferDualStack", ""),
        ("RequireDualStack", ""),
        ("RequireDualStack", "IPv6 IPv4"),
        ("SingleStack", "IPv4"),
    ]);
    let port = Tree::Map(vec![("name", Tree::text("web")), ("port", Tree::text("80"))]);
    (cluster_ip, any::<bool>(), families, 0..3_usize, any::<bool>())
        .prop_map(move |(cluster_ip, cluster_ips, (policy, families), ports, external)| {
            let mut fields = vec![("sessionAffinity", Tree::text("ClientIP"))];
            let no_address =
                cluster_ip.as_ref().is_none_or(|text| !text.contains(char::is_alphanumeric) || text == "null");
            fields.extend(cluster_ip.map(|text| ("clusterIP", Tree::Scalar(text))));
            if cluster_ips && no_address {
                fields.push(("clusterIPs", Tree::List(Vec::new())));
            }
            if !policy.is_empty() {
                fields.push(("ipFamilyPolicy", Tree::text(policy)));
            }
            if !families.is_empty() {
                fields.push(("ipFamilies", Tree::List(families.split(' ').map(Tree::text).collect())));
            }
            if ports > 0 {
                fields.push(("ports", Tree::List(vec![port.clone(); ports])));
            }
            if external && no_address {
                fields.push(("type", Tree::text("ExternalName")));
            }
            fields
        })
        .prop_shuffle()
        .prop_map(Tree::Map)
}

/// Some Services, and between them a text that looks like a Service.
fn objects() -> impl Strategy<Value = Vec<Tree>> {
    let service = |number: usize| {
        (spec(number), prop::sample::select(vec!["", "shop", "kube-system"])).prop_map(move |(spec, namespace)| {
            let mut metadata = vec![("name", Tree::Scalar(format!("web-{number}")))];
            if !namespace.is_empty() {
                metadata.push(("namespace", Tree::text(namespace)));
            }
            let (api_version, kind) = (("apiVersion", Tree::text("v1")), ("kind", Tree::text("Service")));
            Tree::Map(vec![api_version, kind, ("metadata", Tree::Map(metadata)), ("spec", spec)])
        })
    };
    let other = Tree::Map(vec![
        ("apiVersion", Tree::text("v1")),
        ("kind", Tree::text("ConfigMap")),
        ("metadata", Tree::Map(vec![("name", Tree::text("looks"))])),
        ("spec", Tree::Map(vec![("clusterIP", Tree::text("''"))])),
    ]);
    (service(0), service(1), service(2), service(3)).prop_map(move |(a, b, c, d)| vec![a, b, other.clone(), c, d])
}

fn styles() -> impl Strategy<Value = Style> {
    prop_oneof![
        (2..5_usize, any::<bool>()).prop_map(|(indent, comments)| Style::Block { indent, comments }),
        Just(Style::Flow),
        Just(Style::Lines),
    ]
}

/// One text: documents, or one List.
fn write(objects: &[Tree], style: Style, as_list: bool, line_end: &str) -> String {
    let text = if as_list {
        let (api_version, kind) = (("apiVersion", Tree::text("v1")), ("kind", Tree::text("List")));
        Tree::Map(vec![api_version, kind, ("items", Tree::List(objects.to_vec()))]).write(style)
    } else {
        objects.iter().map(|object| object.write(style)).collect::<Vec<_>>().join("---\n")
    };
    text.replace('\n', line_end)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn filled_manifests_differ_only_in_addresses_and_keep_them(
        objects in objects(), style in styles(), as_list: bool, crlf: bool,
    ) {
        let line_end = if crlf { "\r\n" } else { "\n" };
        let text = write(&objects, style, as_list, line_end);
        let (forecast, filled) = plan(&[source("in.yaml", &text)]);

        let mut expected = objects.clone();
        let services = expected.iter_mut().filter(|object| object.to_value()["kind"] == "Service");
        for (service, row) in services.zip(&forecast.rows).filter(|(_, row)| row.decision.is_allocated()) {
            let addresses = row.given.texts();
            // In a list an object is written in braces on one line, whatever the style.
            let style = if as_list && matches!(style, Style::Lines) { Style::Flow } else { style };
            service.field("spec").unwrap().fill(&addresses, style);
        }
        let filled = filled.unwrap();
        prop_assert_eq!(&filled, &write(&expected, style, as_list, line_end));

        let read = parse(&[source("out.yaml", &filled)], "");
        let mut values: Vec<Value> = expected.iter().map(Tree::to_value).collect();
        for value in &mut values {
            let metadata = value["metadata"].as_object_mut().unwrap();
            metadata.entry("namespace").or_insert_with(|| "".into());
        }
        prop_assert_eq!(read.into_iter().map(|manifest| manifest.object).collect::<Vec<_>>(), values);

        let (again, twice) = plan(&[source("out.yaml", &filled)]);
        for (first, second) in forecast.rows.iter().zip(&again.rows) {
            prop_assert_eq!(&first.given, &second.given);
            prop_assert!(!second.decision.is_denied());
        }
        prop_assert_eq!(twice.unwrap(), filled, "nothing is left to fill in");
    }
}

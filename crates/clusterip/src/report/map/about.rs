//! Which cluster a map shows, when the audit was made, and where its settings come from.

use std::fmt;

use jiff::Timestamp;

/// Where the contents of a map come from. Unknown fields are not shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// The context and the API server of the cluster, or the snapshot.
    pub cluster: Option<String>,
    /// When the audit was made.
    pub made: Option<Timestamp>,
    /// The source of the settings.
    pub settings: Option<String>,
}

impl About {
    /// Whether all fields are empty.
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cluster = self.cluster.as_ref().map(|cluster| format!("Cluster: {cluster}"));
        let made = self.made.map(|made| format!("Audited: {}", made.strftime("%Y-%m-%d %H:%M:%S UTC")));
        let settings = self.settings.as_ref().map(|settings| format!("Settings: {settings}"));
        let parts: Vec<String> = [cluster, made, settings].into_iter().flatten().collect();
        f.write_str(&parts.join(" · "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_known_is_shown() {
        let all = About {
            cluster: Some("prod (https://10.0.0.1:6443)".to_owned()),
            made: Some(Timestamp::UNIX_EPOCH),
            settings: Some("settings.yaml".to_owned()),
        };
        let expected =
            "Cluster: prod (https://10.0.0.1:6443) · Audited: 1970-01-01 00:00:00 UTC · Settings: settings.yaml";
        assert_eq!(all.to_string(), expected);
        assert_eq!(About { cluster: None, made: None, ..all }.to_string(), "Settings: settings.yaml");
        assert!(About::default().is_empty());
    }
}

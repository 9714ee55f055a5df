//! The metrics of a process for Prometheus. Each component has a struct of its own that implements [`Component`].
//!
//! Dashboards and alerts rely on the names: docs/metrics.md lists them, and tests compare that list with what is
//! exposed.

use std::hash::Hash;
use std::sync::atomic::AtomicU64;
use std::time::SystemTime;

use parking_lot::{Mutex, MutexGuard};
use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A gauge with fractions.
pub type Number = Gauge<f64, AtomicU64>;

/// The metrics of a component. Clones share the values.
pub trait Component {
    /// Registers all metrics, and sets counters to zero: a rate or an alert needs a value before the first event.
    fn register(&self, registry: &mut Registry);
}

/// Keeps scrapes out while several related values change, so that no scrape sees only some of the changes.
pub fn scrape_lock() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock()
}

/// A counter for each value of one label.
pub type Counters<V> = Family<[(&'static str, V); 1], Counter>;

/// Shows the counters of these values, which are zero, before the first event is counted.
pub fn begin_at_zero<V: Copy + Eq + Hash>(counters: &Counters<V>, label: &'static str, values: &[V]) {
    values.iter().for_each(|value| drop(counters.get_or_create(&[(label, *value)])));
}

pub fn register_version(registry: &mut Registry, name: &str, help: &str) {
    let info: Family<[(&str, &str); 1], Gauge> = Family::default();
    info.get_or_create(&[("version", env!("CARGO_PKG_VERSION"))]).set(1);
    registry.register(name, help, info);
}

#[derive(Debug)]
pub struct Exposition(Registry);

impl Default for Exposition {
    fn default() -> Self {
        Self(Registry::with_prefix("clusterip"))
    }
}

impl Exposition {
    pub fn add(&mut self, component: &impl Component) {
        component.register(&mut self.0);
    }

    /// New metrics, which are exposed from now on.
    pub fn exposed<C: Component + Default>(&mut self) -> C {
        let component = C::default();
        self.add(&component);
        component
    }

    pub fn encode(&self) -> String {
        let _lock = scrape_lock();
        let mut exposed = String::new();
        // Writing to a string can't fail.
        let _ = text::encode(&mut exposed, &self.0);
        exposed
    }
}

/// A count as the value of a gauge.
pub fn whole(count: impl TryInto<i64>) -> i64 {
    count.try_into().unwrap_or(i64::MAX)
}

/// A time as the value of a gauge: seconds since 1970.
pub fn timestamp(at: SystemTime) -> f64 {
    at.duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// Defines an enum whose values are label values. The crate that uses it depends on `prometheus-client`.
#[macro_export]
macro_rules! label_values {
    ($(#[$about:meta])* $name:ident { $($(#[$meaning:meta])* $value:ident = $text:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[$meaning])* $value,)+ }

        impl $name {
            pub const ALL: &[Self] = &[$(Self::$value,)+];

            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$value => $text,)+ }
            }
        }

        impl prometheus_client::encoding::EncodeLabelValue for $name {
            fn encode(
                &self,
                encoder: &mut prometheus_client::encoding::LabelValueEncoder<'_>,
            ) -> Result<(), std::fmt::Error> {
                std::fmt::Write::write_str(encoder, self.as_str())
            }
        }
    };
}

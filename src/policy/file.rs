//! The shape of the policy file: which fields exist, where, and what may be
//! nested in what.
//!
//! The text is YAML, and JSON is YAML. Every scalar is kept as the text that was
//! written, so an amount is never a float on its way. Nothing is judged here:
//! every field may be absent, and a field that nobody knows is kept by name for
//! [`mod@super::check`] to report. What cannot be read into this shape at all (bad
//! syntax, a key given twice, a list where a map belongs) ends the reading.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{DuplicateKeyPolicy, MergeKeyPolicy, UserMessageFormatter};

use super::Fault;

/// The longest text that is read, in bytes.
pub const MAX_BYTES: usize = 16 * 1024 * 1024;

/// Declares a map with the given fields, each of which may be absent (or null,
/// which is the same), and which keeps the names of the fields it does not know.
macro_rules! shape {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Default)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: Option<$type>,)*
            /// The fields that were given and do not exist.
            pub unknown: Vec<String>,
        }

        impl Shape for $name {
            const FIELDS: &'static [&'static str] = &[$(stringify!($field)),*];

            fn unknown(&self) -> &[String] {
                &self.unknown
            }

            fn read<'de, A: MapAccess<'de>>(&mut self, key: String, map: &mut A) -> Result<(), A::Error> {
                match key.as_str() {
                    $(stringify!($field) => self.$field = map.next_value()?,)*
                    _ => {
                        map.next_value::<IgnoredAny>()?;
                        self.unknown.push(key);
                    }
                }
                Ok(())
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_map(ShapeVisitor(Self::default()))
            }
        }
    };
}

/// A map whose fields are fixed.
pub trait Shape {
    /// Every field that exists, supported or not.
    const FIELDS: &'static [&'static str];

    /// The fields that were given and do not exist.
    fn unknown(&self) -> &[String];

    /// Reads the value of one field.
    ///
    /// # Errors
    ///
    /// When the value is not of the field's kind.
    fn read<'de, A: MapAccess<'de>>(&mut self, key: String, map: &mut A) -> Result<(), A::Error>;
}

struct ShapeVisitor<S>(S);

impl<'de, S: Shape> Visitor<'de> for ShapeVisitor<S> {
    type Value = S;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a map of {}", S::FIELDS.join(", "))
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<S, A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            self.0.read(key, &mut map)?;
        }
        Ok(self.0)
    }
}

/// A section: items by name, the names as they were written.
pub type Section<T> = BTreeMap<String, T>;

/// The item of this name. An omitted section has none.
pub fn item<'a, T>(section: &'a Option<Section<T>>, name: &str) -> Option<&'a T> {
    section.as_ref()?.get(name)
}

/// What the service knows by name and cannot do yet: that it was asked for.
pub type Unsupported = IgnoredAny;

shape! {
    /// The whole file.
    PolicyFile {
        /// The paid services.
        providers: Section<ProviderFile>,
        /// The kinds of work that spend at a provider.
        operations: Section<OperationFile>,
        /// The budgets that classes of accounts get.
        plans: Section<PlanFile>,
        /// The customers.
        accounts: Section<AccountFile>,
        /// The limits that all accounts share.
        pools: Section<PoolFile>,
    }
}

shape! {
    /// One provider.
    ProviderFile {
        /// What it bills in.
        unit: String,
        /// `calls` or `worker`.
        enforcement: String,
        /// Our keys there.
        keys: Vec<String>,
    }
}

shape! {
    /// One operation.
    OperationFile {
        /// Where it spends.
        provider: String,
        /// Whether the client states the units.
        explicit: bool,
        /// What a request may state.
        quantities: Section<QuantityFile>,
        /// What the quantities cost.
        cost: CostFile,
        /// The most that one reservation may ask for.
        max_units: String,
        /// `enforce` or `observe`.
        mode: String,
        /// How long a job may go on asking for more.
        max_duration: Unsupported,
        /// The selections that a cost tree takes.
        selection: Unsupported,
    }
}

shape! {
    /// The bounds of one quantity.
    QuantityFile {
        /// The least, inclusive.
        min: String,
        /// The most, inclusive.
        max: String,
        /// What an omission means.
        default: String,
    }
}

shape! {
    /// One term of a cost: a rate times quantities.
    TermFile {
        /// Units per product of the quantities.
        rate: String,
        /// The quantities to multiply; none makes the rate a fixed cost.
        times: Vec<String>,
    }
}

shape! {
    /// A cost that is not a list of terms.
    CostMapFile {
        /// A cost by the shape of the request.
        tree: Unsupported,
    }
}

shape! {
    /// One plan.
    PlanFile {
        /// The limits, by budget name.
        budgets: Section<BudgetFile>,
        /// The units that may be spent without a limit.
        unbounded: Vec<String>,
        /// Running and waiting jobs.
        concurrency: Unsupported,
    }
}

shape! {
    /// One budget of a plan.
    BudgetFile {
        /// What is bounded.
        unit: String,
        /// How much a period admits.
        limit: String,
        /// The kind of period.
        period: String,
        /// The IANA zone whose calendar cuts the periods.
        timezone: String,
        /// `original_period` or `carry_forward`.
        rollover: String,
        /// `enforce` or `observe`.
        mode: String,
        /// `member`: one for each member.
        per: String,
        /// Only work at this provider.
        provider: String,
        /// Only this kind of work.
        operation: String,
    }
}

shape! {
    /// One account.
    AccountFile {
        /// The plan whose budgets it gets.
        plan: String,
        /// Its own limits, by budget name.
        limits: Section<String>,
    }
}

shape! {
    /// One pool: a budget, a pace, or a number of jobs.
    PoolFile {
        /// Only work at this provider.
        provider: String,
        /// Only work with this key of ours.
        provider_key: String,
        /// Only this kind of work.
        operation: String,
        /// What is bounded.
        unit: String,
        /// How much a period admits.
        limit: String,
        /// The kind of period.
        period: String,
        /// The IANA zone whose calendar cuts the periods.
        timezone: String,
        /// `original_period` or `carry_forward`.
        rollover: String,
        /// `enforce` or `observe`.
        mode: String,
        /// A pace in calls.
        calls: Unsupported,
        /// A pace in units.
        units: Unsupported,
        /// The window of a pace.
        per: Unsupported,
        /// A number of running jobs.
        running: Unsupported,
        /// A number of waiting jobs.
        waiting: Unsupported,
    }
}

/// What the quantities of an operation cost.
#[derive(Debug)]
pub enum CostFile {
    /// A sum of terms.
    Terms(Vec<TermFile>),
    /// Anything else, which is a map.
    Map(CostMapFile),
}

impl<'de> Deserialize<'de> for CostFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Only lists and maps are taken, and those read their own scalars as text.
        deserializer.deserialize_any(CostVisitor)
    }
}

struct CostVisitor;

impl<'de> Visitor<'de> for CostVisitor {
    type Value = CostFile;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of terms, each a rate and the quantities to multiply it by")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<CostFile, A::Error> {
        let mut terms = Vec::new();
        while let Some(term) = seq.next_element()? {
            terms.push(term);
        }
        Ok(CostFile::Terms(terms))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<CostFile, A::Error> {
        ShapeVisitor(CostMapFile::default()).visit_map(map).map(CostFile::Map)
    }
}

/// Reads a text into the shape of a policy file.
///
/// # Errors
///
/// The first thing that is not of that shape, with its place, line and column.
pub fn read(text: &str) -> Result<PolicyFile, Fault> {
    if text.len() > MAX_BYTES {
        return Err(Fault::new("", format!("longer than {MAX_BYTES} bytes")));
    }
    let mut place = String::new();
    serde_saphyr::with_deserializer_from_str_with_options(text, options(), |yaml| {
        serde_path_to_error::deserialize(yaml).map_err(|error| {
            // Ends in `?` where the error is about a key, and is `.` at the top.
            let path = error.path().to_string();
            path.trim_end_matches(['?', '.']).clone_into(&mut place);
            error.into_inner()
        })
    })
    .map_err(|error| Fault::new(place, error.render_with_formatter(&UserMessageFormatter)))
}

/// Strict where YAML is lax: a key given twice and a merge, which may override
/// in silence, are errors, and only `true` and `false` are booleans. Aliases are
/// followed, and what they unfold to is bounded.
fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        duplicate_keys: DuplicateKeyPolicy::Error,
        merge_keys: MergeKeyPolicy::Error,
        strict_booleans: true,
        reject_unsupported_tags: true,
        with_snippet: false,
        emit_comments: false,
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: 100_000 },
        budget: serde_saphyr::budget! {
            max_nodes: 1_000_000,
            max_events: 2_000_000,
            // Many accounts may share one anchor; the unfolding is bounded above.
            enforce_alias_anchor_ratio: false,
        },
    }
}

#[cfg(test)]
mod tests;

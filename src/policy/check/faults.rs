//! The list of what is wrong, and the reading of single values into it.

use std::fmt;

use crate::model::{Name, Units};
use crate::policy::file::{Shape, Unsupported};
use crate::policy::{Fault, PolicyRefused};

/// The most of a text that a fault repeats, in characters.
const QUOTED: usize = 64;

/// A path in the file, as in `plans.standard.budgets.daily`.
#[derive(Debug, Clone, Default)]
pub(super) struct Place(String);

impl Place {
    /// The file as a whole.
    pub(super) fn file() -> Self {
        Self::default()
    }

    /// A field or an item inside. What is no name is shown as a quoted text.
    pub(super) fn then(&self, key: &str) -> Self {
        let dot = if self.0.is_empty() { "" } else { "." };
        match key.parse::<Name>() {
            Ok(_) => Self(format!("{self}{dot}{key}")),
            Err(_) => Self(format!("{self}{dot}{}", quoted(key))),
        }
    }

    /// An element of the list at this place.
    pub(super) fn item(&self, index: usize) -> Self {
        Self(format!("{self}[{index}]"))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A text from the file, made safe to print on one line.
pub(super) fn quoted(text: &str) -> String {
    match text.char_indices().nth(QUOTED) {
        Some((end, _)) => format!("{:?}…", text.get(..end).unwrap_or_default()),
        None => format!("{text:?}"),
    }
}

/// What is wrong, in the order in which it was found.
#[derive(Debug, Default)]
pub(super) struct Faults(Vec<Fault>);

impl Faults {
    pub(super) fn add(&mut self, place: &Place, message: impl AsRef<str>) {
        self.0.push(Fault::new(&place.0, message));
    }

    /// How many there are so far.
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// The value, if nothing is wrong.
    pub(super) fn none_or<T>(self, value: T) -> Result<T, PolicyRefused> {
        if self.0.is_empty() { Ok(value) } else { Err(PolicyRefused { faults: self.0 }) }
    }

    /// Reports every field that does not exist.
    pub(super) fn unknown_fields<S: Shape>(&mut self, place: &Place, shape: &S) {
        for field in shape.unknown() {
            let known = S::FIELDS.join(", ");
            self.add(&place.then(field), format!("unknown field; the fields here are {known}"));
        }
    }

    /// Reports what the service knows by name and cannot do yet.
    pub(super) fn unsupported(&mut self, place: &Place, fields: &[(&str, Option<Unsupported>)]) {
        for (field, _) in fields.iter().filter(|(_, asked)| asked.is_some()) {
            self.add(&place.then(field), "is not supported");
        }
    }

    /// The value of a field that must be given.
    pub(super) fn required<'a, T>(&mut self, place: &Place, field: &str, value: &'a Option<T>) -> Option<&'a T> {
        if value.is_none() {
            self.add(&place.then(field), "is required");
        }
        value.as_ref()
    }

    pub(super) fn name(&mut self, place: &Place, text: &str) -> Option<Name> {
        self.read(place, text.parse())
    }

    pub(super) fn required_name(&mut self, place: &Place, field: &str, value: &Option<String>) -> Option<Name> {
        let text = self.required(place, field, value)?;
        self.name(&place.then(field), text)
    }

    /// An optional name: the outer `None` is a fault, the inner one an omission.
    pub(super) fn optional_name(&mut self, place: &Place, field: &str, value: &Option<String>) -> Option<Option<Name>> {
        match value {
            None => Some(None),
            Some(text) => self.name(&place.then(field), text).map(Some),
        }
    }

    /// An amount that is not below zero.
    pub(super) fn amount(&mut self, place: &Place, text: &str) -> Option<Units> {
        self.read(place, Units::parse_non_negative(text))
    }

    pub(super) fn required_amount(&mut self, place: &Place, field: &str, value: &Option<String>) -> Option<Units> {
        let text = self.required(place, field, value)?;
        self.amount(&place.then(field), text)
    }

    /// One word of a fixed set.
    pub(super) fn word<T: Copy>(&mut self, place: &Place, text: &str, words: &[(&str, T)]) -> Option<T> {
        let found = words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
        if found.is_none() {
            let words = words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ");
            self.add(place, format!("must be one of {words}, not {}", quoted(text)));
        }
        found
    }

    /// Like [`Faults::word`], with a value for an omission.
    pub(super) fn word_or_default<T: Copy + Default>(
        &mut self,
        place: &Place,
        field: &str,
        value: &Option<String>,
        words: &[(&str, T)],
    ) -> Option<T> {
        match value {
            None => Some(T::default()),
            Some(text) => self.word(&place.then(field), text, words),
        }
    }

    /// The value, or its error as a fault.
    pub(super) fn read<T, E: fmt::Display>(&mut self, place: &Place, result: Result<T, E>) -> Option<T> {
        result.map_err(|error| self.add(place, error.to_string())).ok()
    }
}

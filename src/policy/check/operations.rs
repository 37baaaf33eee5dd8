//! The operations: how their units are estimated, and what bounds them.

use super::Check;
use super::faults::{Place, quoted};
use crate::model::Units;
use crate::model::cost::{CostMap, CostTerm, Rate};
use crate::model::policy::{Operation, Pricing, Quantity};
use crate::policy::file::{CostFile, OperationFile, QuantityFile, TermFile, item};

impl<'a> Check<'a> {
    pub(super) fn operation(&mut self, place: &Place, file: &'a OperationFile) -> Option<Operation> {
        self.faults.unknown_fields(place, file);
        let later = [("max_duration", file.max_duration), ("selection", file.selection)];
        self.faults.unsupported(place, &later);
        let provider = self.faults.required_name(place, "provider", &file.provider);
        let provider = provider.filter(|name| self.provider_named(&place.then("provider"), name).is_some());
        let pricing = self.pricing(place, file);
        let max_units = self.max_units(place, file);
        let mode = self.mode(place, &file.mode);
        Some(Operation { provider: provider?, pricing: pricing?, max_units: max_units?, mode: mode? })
    }

    /// What is not bounded is not admitted, so the bound must be given.
    fn max_units(&mut self, place: &Place, file: &OperationFile) -> Option<Units> {
        let max_units = self.faults.required_amount(place, "max_units", &file.max_units)?;
        if max_units.is_zero() {
            let message = "must be above zero; it would admit nothing";
            self.faults.add(&place.then("max_units"), message);
            return None;
        }
        Some(max_units)
    }

    /// Exactly one of the two ways to come to units.
    fn pricing(&mut self, place: &Place, file: &'a OperationFile) -> Option<Pricing> {
        let explicit = file.explicit == Some(true);
        if !explicit && file.quantities.is_none() && file.cost.is_none() {
            let message = "needs either `quantities` and `cost`, or `explicit: true`";
            self.faults.add(place, message);
            return None;
        }
        if explicit {
            if file.quantities.is_some() || file.cost.is_some() {
                let message = "the client states the units, so `quantities` and `cost` have no use";
                self.faults.add(&place.then("explicit"), message);
            }
            return Some(Pricing::Explicit);
        }
        let declared = self.faults.required(place, "quantities", &file.quantities);
        let quantities = self.section(&place.then("quantities"), &file.quantities, Check::quantity);
        let cost = self.faults.required(place, "cost", &file.cost)?;
        let cost = self.cost(&place.then("cost"), cost, file);
        declared?;
        Some(Pricing::Map { quantities, cost: cost? })
    }

    fn quantity(&mut self, place: &Place, file: &'a QuantityFile) -> Option<Quantity> {
        self.faults.unknown_fields(place, file);
        let min = self.faults.required_amount(place, "min", &file.min);
        let max = self.faults.required_amount(place, "max", &file.max);
        let default_place = place.then("default");
        let default = match &file.default {
            None => Some(None),
            Some(text) => self.faults.amount(&default_place, text).map(Some),
        };
        if let (Some(min), Some(max)) = (min, max)
            && min > max
        {
            let message = format!("{min} is above `max`, {max}");
            self.faults.add(&place.then("min"), message);
        } else if let Some(Some(default)) = default
            && (min.is_some_and(|min| default < min) || max.is_some_and(|max| default > max))
        {
            let message = format!("{default} is not between `min` and `max`");
            self.faults.add(&default_place, message);
        }
        Some(Quantity { min: min?, max: max?, default: default? })
    }

    fn cost(&mut self, place: &Place, cost: &CostFile, file: &OperationFile) -> Option<CostMap> {
        let terms = match cost {
            CostFile::Terms(terms) => terms,
            CostFile::Map(map) => {
                self.faults.unknown_fields(place, map);
                self.faults.unsupported(place, &[("tree", map.tree)]);
                if map.tree.is_none() {
                    self.faults.add(place, "must be a list of terms");
                }
                return None;
            }
        };
        let read: Vec<_> =
            terms.iter().enumerate().filter_map(|(index, term)| self.term(&place.item(index), term, file)).collect();
        if read.len() < terms.len() {
            return None;
        }
        let map = CostMap { terms: read };
        self.faults.read(place, map.check())?;
        Some(map)
    }

    fn term(&mut self, place: &Place, term: &TermFile, operation: &OperationFile) -> Option<CostTerm> {
        self.faults.unknown_fields(place, term);
        let rate = self.faults.required(place, "rate", &term.rate);
        let rate = rate.and_then(|text| self.faults.read(&place.then("rate"), Rate::parse(text)));
        let times = term.times.as_deref().unwrap_or_default();
        for (index, name) in times.iter().enumerate() {
            if item(&operation.quantities, name).is_none() {
                let message = format!("{} is not a quantity of this operation", quoted(name));
                self.faults.add(&place.then("times").item(index), message);
            }
        }
        Some(CostTerm { rate: rate?, times: times.to_vec() })
    }
}

//! Operations, quantities and costs.

use super::{accepted, assert_faults, operation};
use crate::model::policy::Mode;

#[test]
fn operations_are_priced_in_exactly_one_way() {
    let both = "needs either `quantities` and `cost`, or `explicit: true`";
    for (fields, place, message) in [
        ("provider: t, max_units: 1", "", both),
        ("provider: t, max_units: 1, explicit: false", "", both),
        ("provider: t, max_units: 1, quantities: {}", ".cost", "is required"),
        ("provider: t, max_units: 1, cost: [{ rate: 1 }]", ".quantities", "is required"),
        ("provider: t, max_units: 1, explicit: true, quantities: {}", ".explicit", "no use"),
        ("provider: t, max_units: 1, explicit: true, cost: [{ rate: 1 }]", ".explicit", "no use"),
        ("provider: t, explicit: true", ".max_units", "is required"),
        ("provider: t, explicit: true, max_units: 0", ".max_units", "above zero"),
        ("provider: t, explicit: true, max_units: -1", ".max_units", "is negative"),
        ("provider: x, explicit: true, max_units: 1", ".provider", "there is no provider `x`"),
        ("explicit: true, max_units: 1", ".provider", "is required"),
        ("provider: t, explicit: true, max_units: 1, mode: off", ".mode", "enforce, observe"),
    ] {
        assert_faults(&operation(fields), &[(&format!("operations.o{place}"), message)]);
    }
    let observed = accepted(&operation("provider: t, explicit: true, max_units: 1, mode: observe"));
    assert_eq!(observed.operations["o"].mode, Mode::Observe);
}

#[test]
fn quantities_are_bounded() {
    for (fields, place, message) in [
        ("max: 1", "min", "is required"),
        ("min: 1", "max", "is required"),
        ("min: -1, max: 1", "min", "is negative"),
        ("min: 2, max: 1", "min", "2 is above `max`, 1"),
        ("min: 2, max: 1, default: 5", "min", "2 is above `max`, 1"),
        ("min: 1, max: 3, default: 0.5", "default", "0.5 is not between"),
        ("min: 1, max: 3, default: 3.1", "default", "3.1 is not between"),
        ("min: 1, max: 3, least: 1", "least", "unknown field"),
    ] {
        let fields = format!("provider: t, max_units: 1, quantities: {{ q: {{ {fields} }} }}, cost: [{{ rate: 1 }}]");
        let place = format!("operations.o.quantities.q.{place}");
        assert_faults(&operation(&fields), &[(&place, message)]);
    }
}

#[test]
fn a_cost_names_declared_quantities_and_has_terms() {
    let term = "{ rate: 1 }";
    for (cost, place, message) in [
        ("[]".to_owned(), "", "no terms"),
        (format!("[{}]", [term; 33].join(", ")), "", "more than 32 terms"),
        (format!("[{{ rate: 1, times: [{}] }}]", ["q"; 9].join(", ")), "", "more than 8"),
        ("[{ times: [q] }]".to_owned(), "[0].rate", "is required"),
        ("[{ rate: 1 }, { rate: -1 }]".to_owned(), "[1].rate", "is negative"),
        ("[{ rate: 1, times: [q, r] }]".to_owned(), "[0].times[1]", "is not a quantity"),
        ("[{ rate: 1, time: [q] }]".to_owned(), "[0].time", "unknown field"),
        ("{ tree: { user: { cost: 1 } } }".to_owned(), ".tree", "is not supported"),
        ("{}".to_owned(), "", "must be a list of terms"),
        ("1.5".to_owned(), "", "a list of terms"),
    ] {
        let fields = format!("provider: t, max_units: 1, quantities: {{ q: {{ min: 0, max: 1 }} }}, cost: {cost}");
        assert_faults(&operation(&fields), &[(&format!("operations.o.cost{place}"), message)]);
    }
}

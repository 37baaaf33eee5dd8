//! Amounts are read, written and summed exactly.

use bigdecimal::BigDecimal;
use proptest::prelude::*;

use super::*;

#[test]
fn text_becomes_the_amount_that_it_says() {
    let table = "0 0, -0 0, -0.0e5 0, 0e99 0, 5.0 5, -3 -3, 007 7, 1E3 1000, 1e+2 100,
        1.5e-07 0.00000015, 1.0000000000000 1, 1e-12 0.000000000001,
        1234000e-15 0.000000001234, 0.0000000000000000000001e15 0.0000001,
        -9999999999999999.999999999999 -9999999999999999.999999999999";
    for row in table.split(',') {
        let (text, shown) = row.trim().split_once(' ').unwrap();
        assert_eq!(Units::parse(text).unwrap().to_string(), shown, "{text}");
    }
    let max = Units::parse("9999999999999999.999999999999");
    assert_eq!(max, Ok(Units::MAX));
    assert_eq!(Units::from(7), Units::parse("7.0").unwrap());
}

#[test]
fn what_is_no_amount_is_refused_with_its_reason() {
    use AmountError::*;
    let refused = |reason, texts: &str| {
        for text in texts.split('|') {
            assert_eq!(Units::parse(text), Err(reason), "{text}");
        }
    };
    refused(Empty, "");
    refused(TooLong, &"0".repeat(65));
    refused(Blank, " 1|1\n| |1 e3");
    refused(PlusSign, "+1");
    refused(NotANumber, "NaN|-nan|.nan");
    refused(Infinite, "Infinity|inf|-.inf");
    refused(NotBaseTen, "0x1E|0b1");
    refused(Separator, "1_000|1,5");
    refused(NotDecimal, ".5|5.|1.2.3|--1|1e|e5|1e1.5|1e--1|-|١|five");
    refused(Exponent, "1e100|1e-999999999999999999999|0e1000000000");
    refused(Decimals, "1e-13|0.0000000000010000001|1e-99");
    refused(OutOfRange, "1e16|-10000000000000000|1e99");
    assert_eq!(Units::parse_non_negative("-1e-12"), Err(Negative));
    assert_eq!(Units::parse_non_negative("-0"), Ok(Units::ZERO));
}

#[test]
fn sums_beyond_the_range_are_errors() {
    use AmountError::*;
    let step = Units::parse("1e-12").unwrap();
    assert_eq!(Units::MAX.checked_add(step), Err(OutOfRange));
    let least = Units::parse(&format!("-{}", Units::MAX)).unwrap();
    assert_eq!(least.checked_sub(step), Err(OutOfRange));
    assert_eq!(least.checked_add(Units::MAX), Ok(Units::ZERO));
    assert_eq!(Units::from_decimal(Decimal::MAX), Err(OutOfRange));
    assert_eq!(Units::from_decimal(Decimal::new(1, 13)), Err(Decimals));
    assert_eq!(Units::from_decimal(Decimal::new(10, 13)), Ok(step));
}

#[test]
fn json_has_amounts_as_strings() {
    let half: Units = serde_json::from_str("\"5e-1\"").unwrap();
    assert_eq!(serde_json::to_string(&half).unwrap(), "\"0.5\"");
    let error = serde_json::from_str::<Units>("\"1e-13\"").unwrap_err();
    assert!(error.to_string().contains("has more than 12 decimals"));
    assert!(serde_json::from_str::<Units>("0.5").is_err());
}

fn units() -> impl Strategy<Value = Units> {
    let most = Units::MAX.steps();
    prop_oneof![most.saturating_neg()..=most, -2_000_000..2_000_000_i128]
        .prop_map(|steps| Units::from_steps(steps).unwrap())
}

fn exact(units: Units) -> BigDecimal {
    units.to_string().parse().unwrap()
}

proptest! {
    #[test]
    fn display_is_read_back(a in units(), shift in -20..20_i32) {
        prop_assert_eq!(Units::parse(&a.to_string()), Ok(a));
        prop_assert_eq!(Units::from_decimal(a.get()), Ok(a));
        let text = format!("{}e{}", a.steps(), shift);
        let meant: BigDecimal = text.parse().unwrap();
        match Units::parse(&text) {
            Ok(read) => prop_assert_eq!(exact(read), meant),
            Err(AmountError::Decimals) => prop_assert_ne!(meant.with_scale(12), meant),
            Err(_) => prop_assert!(meant.abs() > exact(Units::MAX)),
        }
    }

    #[test]
    fn sums_are_exact(a in units(), b in units()) {
        match a.checked_add(b) {
            Ok(sum) => {
                prop_assert_eq!(exact(sum), exact(a) + exact(b));
                prop_assert_eq!(sum.checked_sub(b), Ok(a));
            }
            Err(_) => prop_assert!((exact(a) + exact(b)).abs() > exact(Units::MAX)),
        }
    }

    #[test]
    fn no_text_panics(text in "[-+0-9.eE_ xnNaif]{0,70}") {
        let _ = Units::parse(&text);
    }
}

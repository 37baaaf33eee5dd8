//! What is false about an archive is named: in the checkpoints by `verify`, in the
//! files by the check.

use spend_ledger::ledger::archive::check;

use super::{Spring, differences, edit};

/// Without anything that would stop a falsification.
async fn falsify(spring: &Spring, statement: &str) {
    let statement = format!("set session_replication_role = replica; {statement}");
    spring.database().execute(&statement).await;
}

/// What is done, and the words of a difference that names it. The checkpoint is the
/// newest of the budget that never ends.
const FALSIFIED: [(&str, &str); 13] = [
    (
        "update journal_checkpoint set available = available + 1, granted = granted + 1, limit_units = limit_units + 1
         where {ever}",
        "stores available",
    ),
    ("update journal_checkpoint set settled = settled - 1, available = available + 1 where {ever}", "stores settled"),
    ("update journal_checkpoint set limit_units = limit_units + 1, carried = carried + 1 where {ever}", "limit is"),
    ("update journal_checkpoint set entry_no = entry_no + 1 where {ever}", "18 entries of 5 periods are archived"),
    ("update journal_checkpoint set entry_no = entry_no - 1 where {ever}", "follows entry"),
    ("update journal_checkpoint set at = '2040-05-10T18:00:00Z' where {ever}", "is before that of the entry before it"),
    ("delete from journal_checkpoint where {ever}", "journal of 2040-04: "),
    ("delete from archived_month where stretch = 'journal_entry_2040_04'", "no such month has been archived"),
    (
        "update archived_month set row_count = row_count + 1 where stretch = 'journal_entry_2040_03'",
        "journal of 2040-03: ",
    ),
    ("delete from budget_period where budget = 'ever'", "there is no such period"),
    (
        "delete from journal_entry where entry_no = (select entry_no + 1 from journal_checkpoint where {ever})
            and period_id = (select id from budget_period where budget = 'ever')",
        "follows entry",
    ),
    ("update reservation_checkpoint set settled = settled + 1 where settled > 0", "settled 15"),
    ("delete from reservation_checkpoint where month = '2040-03-01'", "its entries make"),
];
const EVER: &str = "month = '2040-04-01' and period_id = (select id from budget_period where budget = 'ever')";

#[tokio::test]
async fn a_false_checkpoint_is_named() {
    let spring = Spring::new().await;
    spring.archive("2040-05").await;
    spring.holds(6).await;
    let tables = ["journal_checkpoint", "reservation_checkpoint", "archived_month", "budget_period", "journal_entry"];
    spring.database().execute("create schema saved").await;
    for table in tables {
        spring.database().execute(&format!("create table saved.{table} as table {table}")).await;
    }
    for (statement, words) in FALSIFIED {
        let statement = statement.replace("{ever}", EVER);
        falsify(&spring, &statement).await;
        let (_, said) = differences(spring.database()).await;
        assert!(said.iter().any(|line| line.contains(words)), "{statement}\n  expected: {words}\n  said: {said:#?}");
        let back = tables.map(|table| format!("delete from {table}; insert into {table} select * from saved.{table};"));
        falsify(&spring, &back.concat()).await;
    }
    spring.holds(6).await;
}

#[tokio::test]
async fn a_month_that_is_taken_out_without_a_checkpoint_is_named() {
    let spring = Spring::new().await;
    spring.database().execute("alter table journal_entry detach partition journal_entry_2040_03").await;
    let (_, said) = differences(spring.database()).await;
    let named = |words: &str| said.iter().any(|line| line.contains(words));
    assert!(named("follows entry 0") && named("entries, the journal has 0"), "{said:#?}");
    spring
        .database()
        .execute(
            "alter table journal_entry attach partition journal_entry_2040_03
                 for values from ('2040-03-01T00:00:00Z') to ('2040-04-01T00:00:00Z')",
        )
        .await;
    spring.holds(0).await;
    // Nor can one be left out in the middle.
    spring.archive("2040-04").await;
    spring.database().execute("alter table journal_entry detach partition journal_entry_2040_04").await;
    let (verified, said) = differences(spring.database()).await;
    assert_eq!(verified.checkpoints, 4);
    assert!(said.iter().any(|line| line.contains("ever") && line.contains("follows entry")), "{said:#?}");
}

#[tokio::test]
async fn a_month_that_does_not_add_up_is_not_archived() {
    let spring = Spring::new().await;
    falsify(&spring, "update journal_entry_2040_04 set amount = amount + 1 where event = 'reserve'").await;
    let error = spring.try_archive(&spring.ask("2040-05")).await.unwrap_err().to_string();
    assert!(error.contains("differences in journal_entry_2040_04: nothing of it was archived"), "{error}");
    assert_eq!(spring.months_of("journal_entry").await, ["journal_entry_2040_04", "journal_entry_2040_05"]);
    let archived = "select stretch from archived_month where row_count > 0";
    assert_eq!(spring.database().lines(archived).await, ["journal_entry_2040_03"]);
    assert!(!spring.file("journal_entry_2040_04.csv").exists());
}

#[tokio::test]
async fn a_changed_byte_of_a_file_is_found() {
    let spring = Spring::new().await;
    spring.archive("2040-05").await;
    let file = spring.file("journal_entry_2040_04.csv");
    let original = std::fs::read(&file).unwrap();
    let checked = async || {
        let mut said = Vec::new();
        let checked = check(&spring.database().service_url, &file, |line| said.push(line.to_owned())).await;
        (checked.map(|checked| checked.differences).unwrap_or(u64::MAX), said)
    };
    assert_eq!(checked().await, (0, Vec::new()));
    for place in (0..original.len()).step_by(97).chain([original.len() - 1]) {
        let mut changed = original.clone();
        changed[place] ^= 1;
        std::fs::write(&file, &changed).unwrap();
        assert_ne!(checked().await.0, 0, "byte {place} is another");
    }
    for changed in [&original[..original.len() - 1], b"", &[&original[..], b"\n"].concat()] {
        std::fs::write(&file, changed).unwrap();
        assert_ne!(checked().await.0, 0, "it ends elsewhere");
    }
    std::fs::write(&file, &original).unwrap();
    assert_eq!(checked().await, (0, Vec::new()));

    // Whoever changes the file and its recorded hash is found by the chain: another
    // actor, which no balance knows of, and a line less.
    for change in [
        |text: String| text.replacen("key:", "kez:", 1),
        |text: String| text.lines().take(text.lines().count() - 1).map(|line| format!("{line}\n")).collect(),
        |text: String| text.replace(",12,", ",13,"),
    ] {
        std::fs::write(&file, &original).unwrap();
        edit(&file, change);
        falsify(
            &spring,
            &format!(
                "update archived_month set sha256 = sha256(convert_to('{}', 'utf8')) where stretch = 'journal_entry_2040_04'",
                std::fs::read_to_string(&file).unwrap().replace('\'', "''")
            ),
        )
        .await;
        let (found, said) = checked().await;
        assert!(found > 0 && said.iter().all(|line| !line.contains("SHA-256")), "{said:#?}");
        assert!(said.iter().any(|line| line.contains("its checkpoint")), "{said:#?}");
    }
    // A file of no month.
    let other = spring.file("other.csv");
    std::fs::write(&other, &original).unwrap();
    let error = check(&spring.database().service_url, &other, |_| {}).await.unwrap_err();
    assert!(error.to_string().ends_with("no month was archived under this name"), "{error}");
}

/// Whatever was in it: calls that have all ended, or nothing at all.
#[tokio::test]
async fn a_month_that_was_taken_out_without_a_record_is_named() {
    let spring = Spring::new().await;
    spring.archive("2040-04").await;
    spring.holds(4).await;
    for table in ["journal_entry", "call", "refusal"] {
        // The last month that is open ahead: it has no rows.
        let newest = format!("select name from stretches('{table}') where name !~ '_later$' order by starts_at desc");
        let month = spring.database().lines(&newest).await.remove(0);
        let bounds = format!(
            "select format('for values from (%s) to (%s)', bound_text('{table}', starts_at), bound_text('{table}', ends_at))
             from stretches('{table}') where name = '{month}'"
        );
        let bounds = spring.database().lines(&bounds).await.remove(0);
        spring.database().execute(&format!("alter table {table} detach partition {month}")).await;
        let (_, said) = differences(spring.database()).await;
        assert!(said.iter().any(|line| line.starts_with(&format!("{table} has no place for rows from"))), "{said:#?}");
        spring.database().execute(&format!("alter table {table} attach partition {month} {bounds}")).await;
        spring.holds(4).await;
    }
}

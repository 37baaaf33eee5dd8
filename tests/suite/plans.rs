//! What a statement does must not depend on how Postgres plans it. A lock taken
//! through a join or an IN (SELECT) loses rows, under some plans, when it had to
//! be waited for; then a settlement would be acknowledged that no journal entry
//! stands for.

use futures_util::future::join_all;
use sqlx::Executor as _;

use crate::support::server::TestDatabase;
use crate::support::{Client, Options, Service};

const POLICY: &str = "
providers: { transformer: { unit: transformation, enforcement: worker } }
operations: { bulk: { provider: transformer, explicit: true, max_units: 1000 } }
plans:
  standard:
    budgets:
      daily: { unit: transformation, limit: 100000, period: day }
      ever: { unit: transformation, limit: 200000, period: total }
accounts: { northstar: { plan: standard } }
pools: { everyone: { unit: transformation, limit: 300000, period: month } }
";

/// Settings under which the planner has to find other ways.
const SETTINGS: [&[&str]; 9] = [
    &[],
    &["plan_cache_mode = force_generic_plan"],
    &["plan_cache_mode = force_custom_plan", "enable_hashagg = off"],
    &["enable_nestloop = off"],
    &["enable_hashjoin = off"],
    &["enable_hashjoin = off", "enable_mergejoin = off"],
    &["enable_nestloop = off", "enable_hashjoin = off", "enable_hashagg = off"],
    &["enable_seqscan = off", "enable_hashagg = off", "enable_hashjoin = off"],
    &["enable_indexscan = off", "enable_bitmapscan = off", "enable_material = off"],
];

#[tokio::test]
async fn no_plan_loses_a_row_that_had_to_be_waited_for() {
    for settings in SETTINGS {
        storm(settings).await;
    }
}

/// Eight workers at once on one account, whose every statement waits for the
/// same three periods.
async fn storm(settings: &[&str]) {
    let database = TestDatabase::new().await;
    let name: String =
        sqlx::query_scalar("select current_database()").fetch_one(&mut database.connect().await).await.unwrap();
    for setting in settings {
        let statement = format!("alter database {name} set {setting}");
        database.connect().await.execute(sqlx::AssertSqlSafe(statement)).await.unwrap();
    }
    let service = Service::on(database, Options { max_connections: 6, ..Options::default() }).await;
    service.apply(POLICY).await;
    let client = service.worker(&["northstar"]).await;
    join_all((0..8).map(|worker| jobs(client.clone(), worker))).await;
    let books = service.books().await;
    assert_eq!(
        books.periods,
        [
            "northstar daily : 100000 99792 0 0 208",
            "northstar ever : 200000 199792 0 0 208",
            " everyone : 300000 299792 0 0 208",
        ],
        "{settings:?}"
    );
}

async fn jobs(client: Client, worker: u32) {
    for job in 0..2 {
        let job = client.reserve_bulk(&format!("{worker}-{job}"), "10").await.expect(201);
        client.extend(&job, "20").await.expect(200);
        client.progress(&job, "5").await.expect(200);
        client.settle(&job, "13").await.expect(200);
    }
}

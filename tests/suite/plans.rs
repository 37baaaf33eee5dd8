//! What a statement does must not depend on how Postgres plans it. A lock taken
//! through a join or an IN (SELECT) loses rows, under some plans, when it had to
//! be waited for; then a settlement would be acknowledged that no journal entry
//! stands for.

use futures_util::future::join_all;
use serde_json::{Value, json};
use sqlx::Executor as _;

use crate::support::server::TestDatabase;
use crate::support::{Answer, Client, Options, Service};

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

#[tokio::test]
async fn no_plan_loses_what_opens_is_carried_or_is_limited_anew() {
    for settings in SETTINGS {
        two_days(settings).await;
    }
}

#[tokio::test]
async fn no_plan_loses_a_call_an_attempt_or_a_fence() {
    for settings in SETTINGS {
        abandoned_jobs(settings).await;
    }
}

/// A service whose database has these settings.
async fn under(settings: &[&str]) -> Service {
    let database = TestDatabase::new().await;
    let name: String =
        sqlx::query_scalar("select current_database()").fetch_one(&mut database.connect().await).await.unwrap();
    for setting in settings {
        let statement = format!("alter database {name} set {setting}");
        database.connect().await.execute(sqlx::AssertSqlSafe(statement)).await.unwrap();
    }
    Service::on(database, Options { max_connections: 6, ..Options::default() }).await
}

/// Eight workers at once on one account, whose every statement waits for the
/// same three periods.
async fn storm(settings: &[&str]) {
    let service = under(settings).await;
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

const CARRIED: &str = "
providers: { transformer: { unit: transformation, enforcement: worker } }
operations: { bulk: { provider: transformer, explicit: true, max_units: 1000 } }
plans:
  standard:
    budgets:
      daily: { unit: transformation, limit: 1000, period: day, rollover: carry_forward }
      each: { unit: transformation, limit: 900, period: day, rollover: carry_forward, per: member }
accounts: { northstar: { plan: standard } }
pools: { everyone: { unit: transformation, limit: 3000, period: day, rollover: carry_forward } }
";

/// Eight workers at once open the periods of two days, and bring back on the
/// second what it carries, while the limits are changed again and again.
async fn two_days(settings: &[&str]) {
    let service = under(settings).await;
    service.apply(CARRIED).await;
    let client = service.worker(&["northstar"]).await;
    service.database.set_clock("2026-03-02T12:00:00Z").await;
    let old = join_all((0..8).map(|worker| reserve(&client, "old", worker))).await;
    let opened = service.books().await;
    assert_eq!(
        opened.periods,
        [
            "northstar daily : 1000 920 80 0 0",
            "northstar each m-0: 900 860 40 0 0",
            "northstar each m-1: 900 860 40 0 0",
            " everyone : 3000 2920 80 0 0"
        ],
        "{settings:?}"
    );
    service.database.set_clock("2026-03-03T12:00:00Z").await;
    let second_day = (0..8).zip(old).map(|(worker, old)| {
        let client = client.clone();
        async move {
            let new = reserve(&client, "new", worker).await;
            client.settle(&old, "4").await.expect(200);
            client.settle(&new, "5").await.expect(200);
        }
    });
    let limits = async {
        for limit in ["800", "700", "750", "600"] {
            let everyone = CARRIED.replace("limit: 3000", &format!("limit: {limit}.5"));
            service.apply(&everyone.replace("limit: 1000", &format!("limit: {limit}"))).await;
        }
    };
    futures_util::future::join(join_all(second_day), limits).await;
    let books = service.books().await;
    assert_eq!(
        books.periods,
        [
            "northstar daily : 1000 968 0 0 32",
            "northstar daily : 600 560 0 0 40",
            "northstar each m-0: 900 884 0 0 16",
            "northstar each m-0: 900 880 0 0 20",
            "northstar each m-1: 900 884 0 0 16",
            "northstar each m-1: 900 880 0 0 20",
            " everyone : 3000 2968 0 0 32",
            " everyone : 600.5 560.5 0 0 40",
        ],
        "{settings:?}"
    );
    for (budget, carried) in [("daily ", 80), ("each ", 80), ("everyone ", 80)] {
        for event in ["carried_in", "given_back"] {
            let entries = books.entries_of(event).into_iter().filter(|line| line.starts_with(budget));
            let sum: i64 = entries.map(|line| line.rsplit(' ').next().unwrap().parse::<i64>().unwrap()).sum();
            assert_eq!(sum, carried, "{event} of {budget}under {settings:?}");
        }
    }
}

async fn reserve(client: &Client, key: &str, worker: u32) -> Answer {
    let member = format!("m-{}", worker % 2);
    let body = json!({"operation": "bulk", "units": 10, "member": member, "holder": "w-1"});
    client.reserve(&format!("{key}-{worker}"), body).await.expect(201)
}

const CALLED: &str = "
providers:
  transformer: { unit: transformation, enforcement: calls }
  direct: { unit: transformation, enforcement: worker }
operations:
  bulk: { provider: transformer, explicit: true, max_units: 1000 }
  stream: { provider: direct, explicit: true, max_units: 1000 }
plans:
  standard:
    budgets:
      daily: { unit: transformation, limit: 100000, period: day }
      ever: { unit: transformation, limit: 200000, period: total }
accounts: { northstar: { plan: standard } }
pools: { everyone: { unit: transformation, limit: 300000, period: month } }
";

/// Who acts on jobs.
#[derive(Clone)]
struct Staff {
    worker: Client,
    operator: Client,
    finance: Client,
}

/// Eight workers at once on one account: calls of one job that all share, and jobs
/// of their own that are taken over, cancelled, fenced and closed.
async fn abandoned_jobs(settings: &[&str]) {
    let service = under(settings).await;
    service.apply(CALLED).await;
    let staff = Staff {
        worker: service.worker(&["northstar"]).await,
        operator: service.operator().await,
        finance: service.finance().await,
    };
    let shared = staff.worker.reserve_bulk("shared", "40").await.expect(201);
    join_all((0..8).map(|worker| {
        let (staff, shared) = (staff.clone(), shared.clone());
        async move {
            one_call(&staff, &shared, worker).await;
            if worker % 2 == 0 { called(&staff, worker).await } else { stopped(&staff, worker).await }
        }
    }))
    .await;
    let done = staff.worker.settle(&shared, "32").await.expect(200);
    assert_eq!((done.text("state"), &done.body["version"]), ("settled", &json!(18)), "{settings:?}");
    staff.worker.settle(&shared, "33").await.problem(409, "already_settled");
    let books = service.books().await;
    assert_eq!(
        books.periods,
        [
            "northstar daily : 100000 99852 0 0 148",
            "northstar ever : 200000 199852 0 0 148",
            " everyone : 300000 299852 0 0 148",
        ],
        "{settings:?}"
    );
    let counts = "select format('%s %s', (select count(*) from call), (select count(*) from late_usage))";
    assert_eq!(service.database.lines(counts).await, ["24 5"], "{settings:?}");
    let liabilities = staff.finance.get("/v1/liabilities").await.expect(200);
    assert_eq!((&liabilities.body["items"], &liabilities.body["late_usage"]), (&json!([]), &json!(5)));
}

async fn to(client: &Client, job: &Answer, verb: &str, body: Value) -> Answer {
    client.post(&format!("/v1/reservations/{}{verb}", job.id()), body).await
}

/// A call of the job that all share, which waits for the others'.
async fn one_call(staff: &Staff, shared: &Answer, worker: u32) {
    let (call, attempt) = (format!("c-{worker}"), shared.token());
    let admission = json!({"attempt": attempt, "call": call, "units": 5});
    to(&staff.worker, shared, "/calls", admission).await.expect(201);
    to(&staff.worker, shared, &format!("/calls/{call}/settle"), json!({"attempt": attempt, "units": 4}))
        .await
        .expect(200);
}

/// A job of calls that comes to 18, through a takeover, a cancel and a fence.
async fn called(staff: &Staff, worker: u32) {
    let Staff { worker: client, operator, finance } = staff;
    let job = client.reserve_bulk(&format!("called-{worker}"), "10").await.expect(201);
    let (job, first) = (&job, job.token());
    let call = |attempt: &str, call: &str, units: u32| json!({"attempt": attempt, "call": call, "units": units, "extend": true});
    to(client, job, "/calls", call(&first, "a", 6)).await.expect(201);
    to(client, job, "/calls", call(&first, "b", 9)).await.expect(201);
    to(client, job, "/calls/a/settle", json!({"attempt": first, "units": 7})).await.expect(200);
    to(operator, job, "/calls/b/settle", json!({"outcome": "unknown"})).await.expect(200);
    to(finance, job, "/calls/b/settle", json!({"units": 8, "reason": "invoice"})).await.expect(200);
    let taken = json!({"previous": 1, "holder": "w-2", "force": true});
    to(operator, job, "/attempts", taken).await.expect(201);
    let second = to(client, job, "/attempts", json!({"previous": 1, "holder": "w-2"})).await.expect(200).token();
    to(client, job, "/renew", json!({"attempt": second})).await.expect(200);
    to(client, job, "/settle", json!({"attempt": first, "units": 15})).await.problem(409, "stale_attempt");
    to(client, job, "/calls", call(&second, "c", 5)).await.expect(201);
    to(client, job, "/calls/c/settle", json!({"attempt": second, "outcome": "not_sent"})).await.expect(200);
    to(client, job, "/calls", call(&second, "d", 5)).await.expect(201);
    to(client, job, "/cancel", json!({})).await.expect(200);
    to(client, job, "/fence", json!({"attempt_number": 2})).await.expect(200);
    let ended = to(client, job, "/calls/d/settle", json!({"attempt": second, "units": 3})).await.expect(200);
    assert_eq!(ended.text("reservation_state"), "settled");
}

/// Two jobs whose workers were stopped, that come to 8 and 3.
async fn stopped(staff: &Staff, worker: u32) {
    let Staff { worker: client, operator, finance } = staff;
    let stream = |key: &str| {
        let body = json!({"operation": "stream", "units": 10, "holder": "w-1"});
        client.reserve_request(&format!("{key}-{worker}"), body)
    };
    let evidence = json!({"kind": "process_stopped"});
    let job = &client.send(stream("taken-over")).await.expect(201);
    client.progress(job, "2").await.expect(200);
    let taken = json!({"previous": 1, "holder": "w-2", "force": true, "evidence": evidence, "outstanding": 6});
    to(operator, job, "/attempts", taken).await.expect(201);
    let second = to(client, job, "/attempts", json!({"previous": 1, "holder": "w-2"})).await.expect(200).token();
    let fenced = to(client, job, "/settle", json!({"attempt": second, "units": 3})).await.expect(200);
    assert_eq!((fenced.text("state"), fenced.text("stated_outstanding")), ("fenced", "4"));
    to(finance, job, "/settle", json!({"units": 8, "reason": "invoice"})).await.expect(200);
    let job = &client.send(stream("fenced")).await.expect(201);
    to(client, job, "/cancel", json!({})).await.expect(200);
    let fence = json!({"attempt_number": 1, "evidence": evidence, "outstanding": 4});
    assert_eq!(to(client, job, "/fence", fence).await.expect(200).text("released"), "6");
    let settled = client.settle(job, "3").await.expect(200);
    assert_eq!(settled.text("state"), "settled");
}

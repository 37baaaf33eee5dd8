//! The service, on a database of its own whose clock stands still until it is
//! moved: two processes of it, as far as the database can tell.

use std::time::Duration;

use reqwest::RequestBuilder;
use serde_json::{Map, Value, json};
use spend_ledger::boot::SERVICE_LOGIN;
use spend_ledger::ledger::Context;
use sqlx::PgConnection;
use tokio::runtime::Runtime;

use super::compare::Names;
use super::model::{Answer, time};
use super::play::{Subject, token_name};
use super::policy::{Policy, Shape};
use super::request::{ACCOUNTS, KEYS, Request, Role, Token};
use crate::support::server::TestDatabase;
use crate::support::service::Options;
use crate::support::{Client, Service};

/// 2026-03-01, when the first history of each database begins.
const FIRST_DAY: i64 = 1_772_323_200;
const DAY: i64 = 86_400;
const PROCESSES: usize = 2;
/// Of each process. Every connection plans its statements anew: two are enough
/// for requests to meet, with those of the other process.
const CONNECTIONS: u32 = 2;

pub struct Bench {
    pub database: TestDatabase,
    owner: PgConnection,
    service: Option<Running>,
    clients: Clients,
    shape: Shape,
    pub now: i64,
    policy: Policy,
    /// Counts the histories; the keys of each are its own.
    history: u64,
    /// The midnight before the history began.
    began: i64,
}

/// The processes. They have a runtime of their own, so that they can be killed
/// as a process is: wherever they are.
struct Running {
    runtime: Option<Runtime>,
    processes: Vec<Service>,
}

/// As `kill -9` would end them.
impl Drop for Running {
    fn drop(&mut self) {
        self.processes.clear();
        self.runtime.take().unwrap().shutdown_background();
    }
}

/// One for each role.
#[derive(Clone)]
pub struct Clients {
    pub worker: Client,
    pub operator: Client,
    pub finance: Client,
}

impl Clients {
    pub fn of(&self, role: Role) -> &Client {
        match role {
            Role::Worker => &self.worker,
            Role::Operator => &self.operator,
            Role::Finance => &self.finance,
        }
    }
}

impl Running {
    async fn start(database: &TestDatabase) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let mut processes = Vec::new();
        for _ in 0..PROCESSES {
            let options = Options { max_connections: CONNECTIONS, ..Options::default() };
            let starting = Service::on(database.clone(), options);
            processes.push(runtime.spawn(starting).await.unwrap());
        }
        Self { runtime: Some(runtime), processes }
    }

    /// Applies a policy, and makes keys the first time.
    async fn clients(&self) -> Clients {
        let another = Service::on(self.processes[0].database.clone(), Options::default());
        let made = self.runtime.as_ref().unwrap().spawn(async {
            let service = another.await;
            Clients {
                worker: service.fleet().await,
                operator: service.operator().await,
                finance: service.finance().await,
            }
        });
        made.await.unwrap()
    }

    async fn apply(&self, file: String) {
        let ledger = self.processes[0].ledger.clone();
        let applying = async move {
            ledger.apply_policy(&Context::system("test"), &file, false).await.unwrap();
        };
        self.runtime.as_ref().unwrap().spawn(applying).await.unwrap();
    }
}

impl Bench {
    /// On a new database.
    pub async fn new(shape: &Shape) -> Self {
        let database = TestDatabase::new().await;
        database
            .execute(&format!(
                "create table history_clock (stands_at timestamptz not null);
                 insert into history_clock values ('{}');
                 grant select on history_clock to spend_ledger_service, spend_ledger_finance;
                 create or replace function ledger_clock() returns timestamptz language sql volatile
                     return (select stands_at from history_clock);",
                time(FIRST_DAY)
            ))
            .await;
        let mut owner = database.connect().await;
        // It moves the clock, and reads.
        for setting in ["set synchronous_commit = off", "set plan_cache_mode = force_generic_plan"] {
            sqlx::query(setting).execute(&mut owner).await.unwrap();
        }
        let service = Running::start(&database).await;
        service.apply(shape.file(shape.usual)).await;
        let clients = service.clients().await;
        Self {
            database,
            owner,
            service: Some(service),
            clients,
            shape: *shape,
            now: FIRST_DAY,
            policy: shape.usual,
            history: 0,
            began: FIRST_DAY,
        }
    }

    fn service(&self) -> &Running {
        self.service.as_ref().unwrap()
    }

    /// The idempotency key of a job.
    pub fn key(&self, job: usize) -> String {
        format!("{}-{job}", self.history)
    }

    /// The request as it is sent to one of the processes.
    pub fn request(&self, request: &Request, names: &Names, process: usize) -> (Client, RequestBuilder) {
        let id = names.get(&format!("§id of j{}", request.job)).unwrap_or("00000000-0000-7000-8000-000000000000");
        let token = |token: Token| {
            let known = names.get(&token_name(request.job, token));
            known.map_or_else(|| "1.nobodys".to_owned(), str::to_owned)
        };
        let sent = request.sent(&self.key(request.job), id, token);
        let client = self.clients.of(request.by).at(self.service().processes[process].address);
        let mut builder = client.request(sent.method, &sent.path);
        if let Some(key) = sent.idempotency_key {
            builder = builder.header("idempotency-key", key);
        }
        if let Some(body) = sent.body {
            builder = builder.json(&body);
        }
        (client, builder)
    }

    /// Kills the service wherever it is, waits until the database has let go of
    /// all that it was doing, and starts it again.
    async fn crash(&mut self) {
        self.service = None;
        let left = "select count(*) from pg_stat_activity where datname = current_database() and usename = $1";
        for _ in 0..5000 {
            let left: i64 = sqlx::query_scalar(left).bind(SERVICE_LOGIN).fetch_one(&mut self.owner).await.unwrap();
            if left == 0 {
                self.service = Some(Running::start(&self.database).await);
                return;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        panic!("the database still works for a service that was killed");
    }

    async fn read(&mut self, query: &'static str) -> Value {
        let keys: Vec<String> = (0..KEYS).map(|job| self.key(job)).collect();
        let query = sqlx::query_scalar(query).bind(keys).bind(&ACCOUNTS[..]).bind(self.began);
        query.fetch_one(&mut self.owner).await.unwrap()
    }
}

/// An answer in the form in which answers are compared.
pub fn as_answer(mut answer: crate::support::Answer) -> Answer {
    if let Some(replayed) = answer.headers.get("idempotency-replayed") {
        answer.body["(replayed)"] = json!(replayed == "true");
    }
    Answer::new(answer.status.as_u16(), answer.body)
}

impl Subject for Bench {
    async fn begin(&mut self, shape: &Shape) -> i64 {
        self.history += 1;
        self.began = self.now - self.now % DAY + DAY;
        // In the morning, so that some steps later it is still the same day.
        self.wait_until(self.began + 8 * 3600).await;
        if self.policy != shape.usual {
            self.apply(shape.usual).await;
        }
        self.now
    }

    async fn ask(&mut self, request: &Request, names: &Names, process: usize) -> Answer {
        let (client, builder) = self.request(request, names, process);
        as_answer(client.send(builder).await)
    }

    async fn ask_twice(&mut self, request: &Request, names: &Names) -> [Answer; 2] {
        let (client, one) = self.request(request, names, 0);
        let (_, other) = self.request(request, names, 1);
        let (one, other) = tokio::join!(client.send(one), client.send(other));
        [one, other].map(as_answer)
    }

    async fn ask_and_crash(&mut self, request: &Request, names: &Names, after: u64) -> Answer {
        let (client, builder) = self.request(request, names, 0);
        // Whatever came of it, nobody hears it.
        let _ = tokio::time::timeout(Duration::from_millis(after), client.try_send(builder)).await;
        self.crash().await;
        self.ask(request, names, 0).await
    }

    async fn budgets(&mut self, account: usize, process: usize) -> Answer {
        let client = self.clients.worker.at(self.service().processes[process].address);
        as_answer(client.get(&format!("/v1/accounts/{}/budgets", ACCOUNTS[account])).await)
    }

    async fn liabilities(&mut self) -> Answer {
        let finance = self.clients.finance.at(self.service().processes[0].address);
        as_answer(finance.get("/v1/liabilities").await)
    }

    async fn lists(&mut self, job: usize, names: &Names) -> Value {
        let id = names.get(&format!("§id of j{job}")).unwrap();
        let client = |role| self.clients.of(role).at(self.service().processes[1].address);
        let listed = client(Role::Worker).get(&format!("/v1/reservations/{id}/calls")).await.expect(200).body;
        let calls = listed["items"].as_array().unwrap().iter().map(|call| {
            let mut call = call.as_object().unwrap().clone();
            call.retain(|name, _| !name.ends_with("_at"));
            (call["call"].as_str().unwrap().to_owned(), Value::Object(call))
        });
        let calls: Map<String, Value> = calls.collect();
        let late = client(Role::Finance).get(&format!("/v1/late-usage?reservation={id}")).await.expect(200).body;
        let text = |of: &Value| of.as_str().unwrap_or("-").to_owned();
        let lines = late["items"].as_array().unwrap().iter().map(|late| {
            let [call, units, code] = ["call", "units", "refused_as"].map(|name| text(&late[name]));
            format!("attempt {} call {call} {units} {code} {}", late["attempt"], text(&late["provider_request_id"]))
        });
        let mut lines: Vec<String> = lines.collect();
        lines.sort();
        json!({"calls": calls, "late": lines})
    }

    async fn wait_until(&mut self, now: i64) {
        self.now = now;
        let update = sqlx::query("update history_clock set stands_at = to_timestamp($1::bigint)").bind(now);
        update.execute(&mut self.owner).await.unwrap();
    }

    async fn apply(&mut self, policy: Policy) {
        self.policy = policy;
        self.service().apply(self.shape.file(policy)).await;
    }

    async fn books(&mut self) -> Value {
        self.read(BOOKS).await
    }

    async fn beside_the_books(&mut self) -> Value {
        self.read(BESIDE_THE_BOOKS).await
    }
}

const BOOKS: &str = "
select jsonb_build_object(
    'jobs', (
        select coalesce(jsonb_object_agg('j' || split_part(idempotency_key, '-', 2), jsonb_build_object(
            'state', state, 'ceiling', trim_scale(ceiling)::text, 'settled', trim_scale(settled)::text,
            'in_flight', trim_scale(in_flight)::text, 'unknown', trim_scale(unknown_units)::text,
            'stated', trim_scale(stated_outstanding)::text, 'reserved', trim_scale(reserved)::text,
            'liability', trim_scale(liability)::text, 'version', version, 'attempt', attempt_number,
            'holder', attempt_holder, 'attempt_settled', trim_scale(attempt_settled)::text,
            'attempt_in_flight', trim_scale(attempt_in_flight)::text,
            'attempt_stated', trim_scale(attempt_stated)::text, 'attempt_done', attempt_done,
            'lease_ends', extract(epoch from lease_expires_at)::bigint,
            'updated_at', extract(epoch from updated_at)::bigint,
            'closed_at', extract(epoch from closed_at)::bigint)), '{}')
        from reservation where account = any ($2) and idempotency_key = any ($1)),
    'periods', (
        select coalesce(jsonb_object_agg(
            case account when '' then budget else account end
                || to_char(starts_at at time zone 'UTC', ' YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"'),
            jsonb_build_object(
            'limit', trim_scale(limit_units)::text, 'carried', trim_scale(carried)::text,
            'available', trim_scale(available)::text, 'reserved', trim_scale(reserved)::text,
            'liability', trim_scale(liability)::text, 'settled', trim_scale(settled)::text)), '{}')
        from budget_period
        where account = any ($2 || ''::text) and budget in ('own', 'pool') and member = ''
          and starts_at >= to_timestamp($3::bigint)))";

const BESIDE_THE_BOOKS: &str = "
with job as materialized (
    select account, id, 'j' || split_part(idempotency_key, '-', 2) as name
    from reservation where account = any ($2) and idempotency_key = any ($1)),
period as materialized (
    select account, id,
           case account when '' then budget else account end
               || to_char(starts_at at time zone 'UTC', ' YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"') as name
    from budget_period
    where account = any ($2 || ''::text) and budget in ('own', 'pool') and member = ''
      and starts_at >= to_timestamp($3::bigint)),
moved as materialized (
    select p.name as period,
           e.event || coalesce(' ' || j.name || ' v' || e.reservation_version || coalesce(' because ' || e.reason, ''), '')
               as cause,
           b.n, trim_scale(sum(case b.bucket when e.target then e.amount when e.source then -e.amount else 0 end))::text
               as change
    from period p
    join journal_entry e on e.account = p.account and e.period_id = p.id
    left join job j on j.id = e.reservation_id
    cross join unnest(array['available', 'reserved', 'liability', 'settled']) with ordinality as b (bucket, n)
    group by 1, 2, b.n),
caused as (
    select period, cause, jsonb_agg(change order by n) as change from moved group by 1, 2)
select jsonb_build_object(
    'jobs', (
        select coalesce(jsonb_object_agg(j.name, jsonb_build_object(
            'events', (
                select jsonb_agg(format('%s %s %s %s %s %s %s attempt %s%s', version, event, state, trim_scale(ceiling),
                                        trim_scale(settled), trim_scale(reserved), trim_scale(liability),
                                        attempt_number, ' because ' || (detail ->> 'reason')) order by version)
                from reservation_event e where e.account = j.account and e.reservation_id = j.id),
            'calls', (
                select coalesce(jsonb_object_agg(c.key, jsonb_build_object(
                    'call', c.key, 'state', c.state, 'units', trim_scale(c.units)::text,
                    'actual', trim_scale(c.actual)::text, 'attempt', c.attempt_number,
                    'provider_request_id', c.provider_request_id)), '{}')
                from call c where c.account = j.account and c.reservation_id = j.id),
            'late', (
                select coalesce(jsonb_agg(line order by line collate \"C\"), '[]')
                from (select format('attempt %s call %s %s %s %s', l.attempt_number,
                                    coalesce(nullif(l.call_key, ''), '-'), trim_scale(l.units), l.refused_as,
                                    coalesce(l.provider_request_id, '-')) as line
                      from late_usage l where l.account = j.account and l.reservation_id = j.id) as late))), '{}')
        from job j),
    'journal', (
        select coalesce(jsonb_object_agg(p.name, (
            select coalesce(jsonb_object_agg(c.cause, c.change), '{}') from caused c where c.period = p.name)), '{}')
        from period p),
    'available', (
        select coalesce(jsonb_object_agg(p.name, (
            select coalesce(jsonb_agg(trim_scale(e.available)::text order by e.entry_no), '[]') || '[\"0\"]'
            from journal_entry e where e.account = p.account and e.period_id = p.id)), '{}')
        from period p))";

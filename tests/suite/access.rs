//! Who may do what: every operation, for every kind of key.

use std::collections::{BTreeMap, BTreeSet};

use reqwest::Method;
use serde_json::{Value, json};
use sha2::Digest as _;
use sqlx::Row as _;

use crate::support::document::{Document, Operation};
use crate::support::unchanged::Unchanged;
use crate::support::{Answer, Client, NORTHSTAR, Service};

const RESERVATIONS: &str = "/v1/reservations";

/// The statuses of an operation on what belongs to northstar, for: a worker of
/// northstar, an operator, finance, a worker of southstar, a worker of all
/// accounts. Without a valid key it is 401, unless it needs none.
const STATUSES: [(&str, [u16; 5]); 21] = [
    ("reserve", [201, 403, 403, 403, 201]),
    ("listReservations", [200, 200, 200, 403, 200]),
    ("getReservation", [200, 200, 200, 404, 200]),
    ("extend", [200, 403, 403, 404, 200]),
    // Finance sends no token, nor an outcome.
    ("settle", [200, 403, 400, 404, 200]),
    ("settleCall", [200, 200, 400, 404, 200]),
    ("admitCall", [201, 403, 403, 404, 201]),
    ("listCalls", [200, 200, 200, 404, 200]),
    ("renew", [200, 403, 403, 404, 200]),
    ("takeOver", [201, 201, 403, 404, 201]),
    ("cancel", [200, 200, 403, 404, 200]),
    ("fence", [200, 200, 403, 404, 200]),
    ("listLiabilities", [403, 200, 200, 403, 403]),
    ("listLateUsage", [403, 200, 200, 403, 403]),
    ("getBudgets", [200, 200, 200, 403, 200]),
    ("applyPolicy", [403, 200, 403, 403, 403]),
    ("createKey", [403, 201, 403, 403, 403]),
    ("listKeys", [403, 200, 403, 403, 403]),
    ("revokeKey", [403, 204, 403, 403, 403]),
    ("listAudit", [403, 200, 200, 403, 403]),
    ("everyone", [200, 200, 200, 200, 200]),
];

/// What needs no key.
const OPEN: [&str; 4] = ["health", "ready", "metrics", "openapi"];

/// A request that would be right for the right caller. `job` is an active
/// reservation of northstar.
fn request(client: &Client, operation: &Operation, job: &Answer, key: &str) -> reqwest::RequestBuilder {
    let id = if operation.id == "revokeKey" { key.to_owned() } else { job.id() };
    let path = operation.path.replace("{account}", "northstar").replace("{id}", &id).replace("{call}", "c");
    let path = if operation.id == "listReservations" { format!("{path}?account=northstar") } else { path };
    let request = client.request(operation.method.parse::<Method>().unwrap(), &path);
    match operation.id.as_str() {
        "reserve" => {
            let body = json!({"operation": "bulk", "units": "0.001", "account": "northstar", "holder": "w-1"});
            request.header("idempotency-key", uuid::Uuid::now_v7().to_string()).json(&body)
        }
        "extend" => request.json(&json!({"attempt": job.token(), "ceiling": "1.5"})),
        "settle" => request.json(&json!({"attempt": job.token(), "units": "0.5"})),
        "admitCall" => request.json(&json!({"attempt": job.token(), "call": "another", "units": "0.5"})),
        "settleCall" => request.json(&json!({"attempt": job.token(), "outcome": "unknown"})),
        "renew" => request.json(&json!({"attempt": job.token()})),
        "takeOver" => request.json(&json!({"previous": 1, "holder": "w-2"})),
        "cancel" => request.json(&json!({})),
        "fence" => request.json(&json!({"attempt_number": 1})),
        "applyPolicy" => request.header("content-type", "application/yaml").body(NORTHSTAR),
        "createKey" => request.json(&json!({"role": "finance"})),
        _ => request,
    }
}

fn code(status: u16) -> &'static str {
    match status {
        400 => "invalid_request",
        401 => "unauthenticated",
        403 => "forbidden",
        404 => "not_found",
        _ => panic!("{status} is no refusal of access"),
    }
}

/// A key as it is made over HTTP: its id and a client.
async fn make_key(service: &Service, operator: &Client, body: Value) -> (String, Client) {
    let made = operator.post("/v1/keys", body).await.expect(201);
    (made.id(), Client::new(service.address, made.text("key")))
}

#[tokio::test]
async fn every_operation_for_every_kind_of_key() {
    let service = Service::with_policy(NORTHSTAR).await;
    let (north, operator) = (service.worker(&["northstar"]).await, service.operator().await);
    let callers = [
        north.clone(),
        operator.clone(),
        service.finance().await,
        service.worker(&["southstar"]).await,
        service.fleet().await,
    ];
    let statuses: BTreeMap<&str, [u16; 5]> = STATUSES.into();
    let operations = Document::read().operations();
    let known: BTreeSet<&str> = operations.iter().map(|operation| operation.id.as_str()).collect();
    for name in statuses.keys().filter(|name| **name != "everyone") {
        assert!(known.contains(name), "{name} is no operation any more");
    }
    for operation in &operations {
        let name = if OPEN.contains(&operation.id.as_str()) { "everyone" } else { &operation.id };
        let row = statuses.get(name).unwrap_or_else(|| panic!("{} has no row in this table", operation.id));
        assert_eq!(operation.secured, name != "everyone", "{}", operation.id);
        for (caller, status) in callers.iter().zip(row) {
            let job = north.reserve_bulk(&uuid::Uuid::now_v7().to_string(), "1").await.expect(201);
            if operation.id == "settleCall" {
                let call = json!({"attempt": job.token(), "call": "c", "units": "0.1"});
                north.post(&format!("{RESERVATIONS}/{}/calls", job.id()), call).await.expect(201);
            }
            if operation.id == "takeOver" {
                let run_out = "update reservation set lease_expires_at = ledger_clock() where state = 'active'";
                service.database.execute(run_out).await;
            }
            let (key, _) = make_key(&service, &operator, json!({"role": "finance"})).await;
            let request = request(caller, operation, &job, &key);
            if *status < 400 {
                let answer = caller.send(request).await;
                assert_eq!(answer.status.as_u16(), *status, "{}: {:#}", operation.id, answer.body);
            } else {
                let unchanged = Unchanged::from_now(&service).await;
                unchanged.refuses(caller, request, *status, code(*status), None).await;
            }
            // Room for the next.
            let path = format!("{RESERVATIONS}/{}/fence", job.id());
            let attempt = if operation.id == "takeOver" && *status < 400 { 2 } else { 1 };
            north.post(&path, json!({"attempt_number": attempt})).await.expect(200);
        }
    }
    service.books().await;
}

#[tokio::test]
async fn without_a_valid_key_nothing_is_told() {
    let service = Service::with_policy(NORTHSTAR).await;
    service.database.set_clock("2026-03-03T12:00:00Z").await;
    let (north, operator) = (service.worker(&["northstar"]).await, service.operator().await);
    let job = north.reserve_bulk("job", "1").await.expect(201);
    let mut invalid = Vec::new();
    for role in ["worker", "operator", "finance"] {
        let accounts = (role == "worker").then(|| json!(["northstar"]));
        let (id, revoked) = make_key(&service, &operator, json!({"role": role, "accounts": accounts})).await;
        revoked.get("/v1/reservations").await.expect(200);
        operator.send(operator.request(Method::DELETE, &format!("/v1/keys/{id}"))).await.expect(204);
        invalid.push((format!("revoked {role}"), revoked));
        let expires = json!({"role": role, "accounts": accounts, "expires_at": "2026-03-03T12:30:00Z"});
        let (_, expired) = make_key(&service, &operator, expires).await;
        expired.get("/v1/reservations").await.expect(200);
        invalid.push((format!("expired {role}"), expired));
    }
    service.database.set_clock("2026-03-03T12:30:00Z").await;
    let cut = &north.key[..north.key.len() - 1];
    let garbage = ["", "x", "sl_", "sl_x", "null", cut, &format!("{}A", north.key), &north.key.to_uppercase()];
    let long = format!("sl_{}", "x".repeat(4000));
    for garbage in garbage.into_iter().chain([long.as_str(), "sl_' or true --", "SL_x"]) {
        invalid.push((format!("garbage {garbage}"), Client::new(service.address, garbage)));
    }
    let (key, _) = make_key(&service, &operator, json!({"role": "finance"})).await;
    let unchanged = Unchanged::from_now(&service).await;
    for operation in Document::read().operations().iter().filter(|operation| operation.secured) {
        for (kind, client) in &invalid {
            let request = request(client, operation, &job, &key);
            let refused = unchanged.refuses(client, request, 401, "unauthenticated", None).await;
            assert_eq!(refused.headers["www-authenticate"], "Bearer", "{kind}");
            assert_eq!(refused.text("retry"), "never", "{kind}");
        }
        // No header, another scheme, a key in another place.
        let secret = north.key.clone();
        for header in [None, Some(secret.clone()), Some(format!("Basic {secret}")), Some(format!("Bearer{secret}"))] {
            let (http, built) = request(&north, operation, &job, &key).build_split();
            let mut built = built.unwrap();
            built.headers_mut().remove("authorization");
            if let Some(header) = header {
                built.headers_mut().insert("authorization", header.parse().unwrap());
            } else {
                built.headers_mut().insert("x-api-key", secret.parse().unwrap());
            }
            let request = reqwest::RequestBuilder::from_parts(http, built);
            unchanged.refuses(&north, request, 401, "unauthenticated", None).await;
        }
    }
    // The scheme's name has no case.
    let answer = reqwest::Client::new()
        .get(format!("http://{}{RESERVATIONS}", service.address))
        .header("authorization", format!("bEaReR {}", north.key));
    assert_eq!(answer.send().await.unwrap().status().as_u16(), 200);
}

#[tokio::test]
async fn another_accounts_reservation_is_not_there() {
    let service = Service::with_policy(NORTHSTAR).await;
    let (north, south) = (service.worker(&["northstar"]).await, service.worker(&["southstar"]).await);
    let (both, fleet) = (service.worker(&["northstar", "southstar"]).await, service.fleet().await);
    let job = north.reserve("job", json!({"operation": "bulk", "units": 5, "holder": "w-1", "reference": "r"})).await;
    let job = job.expect(201);
    let path = format!("{RESERVATIONS}/{}", job.id());
    let nothing = format!("{RESERVATIONS}/{}", uuid::Uuid::now_v7());
    let unchanged = Unchanged::from_now(&service).await;
    for query in ["", "?events=true"] {
        let refused = unchanged
            .refuses(&south, south.request(Method::GET, &format!("{path}{query}")), 404, "not_found", None)
            .await;
        // Word for word what is said of one that does not exist.
        let missing = south.get(&format!("{nothing}{query}")).await.problem(404, "not_found");
        assert_eq!(
            (&refused.body["detail"], refused.body["title"].as_str()),
            (&missing.body["detail"], Some("Not Found"))
        );
    }
    // Not even with the token of its attempt.
    for (verb, body) in [
        ("extend", json!({"attempt": job.token(), "ceiling": "6"})),
        ("settle", json!({"attempt": job.token(), "units": "5"})),
        ("settle", json!({"attempt": job.token(), "quantities": {"formats": 1}})),
        ("renew", json!({"attempt": job.token()})),
        ("attempts", json!({"previous": 1})),
        ("calls", json!({"attempt": job.token(), "call": "c", "units": "1"})),
        ("calls/c/settle", json!({"attempt": job.token(), "units": "1"})),
        ("cancel", json!({})),
        ("fence", json!({"attempt_number": 1})),
    ] {
        let request = south.request(Method::POST, &format!("{path}/{verb}")).json(&body);
        unchanged.refuses(&south, request, 404, "not_found", None).await;
    }
    for query in ["", "?reference=r", "?state=active", "?operation=bulk", "?limit=500"] {
        let list = south.get(&format!("{RESERVATIONS}{query}")).await.expect(200);
        assert_eq!(list.body["items"], json!([]), "{query}");
    }
    // A cursor of somebody else's list shows no more.
    north.reserve_bulk("second", "1").await.expect(201);
    let cursor = north.get(&format!("{RESERVATIONS}?limit=1")).await.expect(200);
    let list = south.get(&format!("{RESERVATIONS}?cursor={}", cursor.text("next_cursor"))).await.expect(200);
    assert_eq!(list.body["items"], json!([]));

    // Claiming the account does not help.
    let unchanged = Unchanged::from_now(&service).await;
    let body = json!({"operation": "bulk", "units": 1, "account": "northstar"});
    unchanged.refuses(&south, south.reserve_request("k", body), 403, "forbidden", None).await;
    for account in ["northstar", "nobody"] {
        // Whether an account exists is nobody's business.
        let request = south.request(Method::GET, &format!("/v1/accounts/{account}/budgets"));
        unchanged.refuses(&south, request, 403, "forbidden", None).await;
        let request = south.request(Method::GET, &format!("{RESERVATIONS}?account={account}"));
        unchanged.refuses(&south, request, 403, "forbidden", None).await;
        let body = json!({"operation": "bulk", "units": 1, "account": account});
        unchanged.refuses(&south, south.reserve_request("k", body), 403, "forbidden", None).await;
    }

    // A key for several accounts has to say which; so has one for all.
    for client in [&both, &fleet] {
        let body = json!({"operation": "bulk", "units": 1, "holder": "w-1"});
        let request = client.reserve_request("job", body.clone());
        unchanged.refuses(client, request, 400, "invalid_request", Some("account")).await;
        assert_eq!(client.get(&path).await.expect(200).id(), job.id());
    }
    let body = json!({"operation": "bulk", "units": 1, "account": "nobody"});
    unchanged.refuses(&both, both.reserve_request("k", body.clone()), 403, "forbidden", None).await;
    unchanged.refuses(&fleet, fleet.reserve_request("k", body), 422, "unknown_account", None).await;

    // The key of a job is its account's own: in another it is another job.
    let body = json!({"operation": "bulk", "units": 1, "account": "southstar", "holder": "w-1"});
    let other = both.reserve("job", body.clone()).await.expect(201);
    assert_ne!(other.id(), job.id());
    // Any key of the account finds it, also the fleet's.
    assert_eq!(fleet.reserve("job", body).await.expect(200).body, other.body);
    assert_eq!(
        south.reserve("job", json!({"operation": "bulk", "units": 1, "holder": "w-1"})).await.expect(200).body,
        other.body
    );
    fleet.settle(&other, "1").await.expect(200);
    service.books().await;
}

#[tokio::test]
async fn a_revocation_works_at_once_everywhere() {
    let service = Service::with_policy(NORTHSTAR).await;
    let other = service.another().await;
    let operator = service.operator().await;
    let (id, worker) = make_key(&service, &operator, json!({"role": "worker", "accounts": ["northstar"]})).await;
    let elsewhere = worker.at(other.address);
    for client in [&worker, &elsewhere] {
        for _ in 0..3 {
            client.get(RESERVATIONS).await.expect(200);
        }
    }
    let at_other = operator.at(other.address);
    at_other.send(at_other.request(Method::DELETE, &format!("/v1/keys/{id}"))).await.expect(204);
    let unchanged = Unchanged::from_now(&service).await;
    for client in [&worker, &elsewhere] {
        let request = client.reserve_request("k", json!({"operation": "bulk", "units": 1}));
        unchanged.refuses(client, request, 401, "unauthenticated", None).await;
    }
    // Again changes nothing, not even when it was.
    operator.send(operator.request(Method::DELETE, &format!("/v1/keys/{id}"))).await.expect(204);
    unchanged.check("a second revocation").await;
    // An operator can revoke itself, once.
    let keys = operator.get("/v1/keys").await.expect(200);
    let own = keys.body["items"].as_array().unwrap().iter().find(|key| key["role"] == "operator").unwrap();
    let path = format!("/v1/keys/{}", own["id"].as_str().unwrap());
    operator.send(operator.request(Method::DELETE, &path)).await.expect(204);
    let unchanged = Unchanged::from_now(&service).await;
    unchanged.refuses(&operator, operator.request(Method::DELETE, &path), 401, "unauthenticated", None).await;
}

/// Every row of every table, as text.
async fn everything(service: &Service) -> Vec<String> {
    let mut owner = service.database.connect().await;
    let tables = sqlx::query(
        "select relname from pg_class where relkind in ('r', 'p') and relnamespace = 'public'::regnamespace",
    );
    let tables: Vec<String> = tables.fetch_all(&mut owner).await.unwrap().iter().map(|row| row.get(0)).collect();
    assert!(tables.len() >= 15, "{tables:?}");
    let mut rows = Vec::new();
    for table in tables {
        let query = sqlx::AssertSqlSafe(format!("select '{table} ' || t::text from {table} t"));
        let found = sqlx::query(query).fetch_all(&mut owner).await.unwrap();
        rows.extend(found.iter().map(|row| row.get::<String, _>(0)));
    }
    rows
}

#[tokio::test]
async fn only_hashes_of_keys_are_stored() {
    let service = Service::with_policy(NORTHSTAR).await;
    let operator = service.operator().await;
    let made =
        operator.post("/v1/keys", json!({"role": "worker", "all_accounts": true, "name": "fleet"})).await.expect(201);
    let secret = made.text("key").to_owned();
    let random = secret.strip_prefix("sl_").expect("a key begins with sl_");
    assert!(random.len() >= 43, "256 bits: {random}");
    let worker = Client::new(service.address, &secret);
    worker.reserve("k", json!({"operation": "bulk", "units": 1, "account": "northstar"})).await.expect(201);
    worker
        .reserve("k2", json!({"operation": "bulk", "units": 100, "account": "northstar"}))
        .await
        .problem(429, "budget_exhausted");
    service.ledger.close().await;

    let rows = everything(&service).await;
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let digest = hex(&sha2::Sha256::digest(secret.as_bytes()));
    assert_eq!(rows.iter().filter(|row| row.contains(&digest)).count(), 1, "the hash is there, once");
    use base64::Engine as _;
    let bytes = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(random).unwrap();
    for key in [secret.as_str(), random, &hex(secret.as_bytes()), &hex(&bytes), &operator.key] {
        assert!(!rows.iter().any(|row| row.contains(key)), "{key} is in the database");
    }
    // Nor is it ever told again.
    let service = service.another().await;
    let operator = operator.at(service.address);
    for path in ["/v1/keys", "/v1/audit"] {
        let told = operator.get(path).await.expect(200).body.to_string();
        assert!(!told.contains(random) && !told.contains(&digest), "{told}");
    }
}

#[tokio::test]
async fn what_operators_do_is_written_down() {
    let service = Service::with_policy(NORTHSTAR).await;
    let (operator, finance) = (service.operator().await, service.finance().await);
    let keys = operator.get("/v1/keys").await.expect(200);
    let own = keys.body["items"].as_array().unwrap().iter().find(|key| key["role"] == "operator").unwrap();
    let actor = format!("key:{}", own["id"].as_str().unwrap());
    let (id, _) =
        make_key(&service, &operator, json!({"role": "worker", "accounts": ["northstar"], "name": "n"})).await;
    operator.send(operator.request(Method::DELETE, &format!("/v1/keys/{id}"))).await.expect(204);
    let policy = |text: String, query: &str| {
        let request = operator.request(Method::POST, &format!("/v1/policy{query}"));
        operator.send(request.header("content-type", "application/yaml").body(text))
    };
    let lowered = NORTHSTAR.replace("limit: 100", "limit: 50");
    assert_eq!(policy(lowered.clone(), "").await.expect(200).body["version"], 2);
    // What changes nothing is not there.
    assert_eq!(policy(lowered, "").await.expect(200).body["version"], 2);
    policy(NORTHSTAR.to_owned(), "?dry_run=true").await.expect(200);
    policy("accounts: 1".to_owned(), "").await.problem(400, "invalid_request");
    operator.post("/v1/keys", json!({"role": "worker"})).await.problem(400, "invalid_request");

    let audit = finance.get("/v1/audit").await.expect(200);
    let items = audit.body["items"].as_array().unwrap();
    let mine: Vec<_> = items.iter().filter(|entry| entry["actor"] == actor.as_str()).collect();
    let said: Vec<_> =
        mine.iter().map(|entry| (entry["action"].as_str().unwrap(), entry["subject"].as_str().unwrap())).collect();
    assert_eq!(said, [("policy_applied", "policy version 2"), ("key_revoked", &id), ("key_created", &id)]);
    let detail = &mine[0]["detail"][0];
    assert_eq!(
        (&detail["kind"], &detail["name"], &detail["action"]),
        (&json!("budget"), &json!("standard/daily"), &json!("changed"))
    );
    let detail = &mine[2]["detail"];
    assert_eq!(
        (&detail["role"], &detail["accounts"], &detail["name"]),
        (&json!("worker"), &json!(["northstar"]), &json!("n"))
    );
    // The rest is what this test's own making did.
    let actors: BTreeSet<_> = items.iter().map(|entry| entry["actor"].as_str().unwrap()).collect();
    assert_eq!(actors, BTreeSet::from([actor.as_str(), "test"]));

    // Page by page it is the same.
    let mut walked = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = operator.get(&format!("/v1/audit?limit=2&cursor={cursor}")).await.expect(200);
        walked.extend(page.body["items"].as_array().unwrap().clone());
        match page.body["next_cursor"].as_str() {
            Some(next) => cursor = next.to_owned(),
            None => break,
        }
    }
    assert_eq!(&walked, items);
    service.books().await;
}

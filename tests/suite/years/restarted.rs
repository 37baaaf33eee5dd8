//! The same with a whole Postgres that is years ahead: the service is stopped, and
//! started again on the same data by a machine whose clock says so.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use chrono::{DateTime, TimeDelta, Utc};
use spend_ledger::ledger::verify::verify;
use spend_ledger::ledger::{Database, DatabaseOptions, Ledger};
use spend_ledger::telemetry::Metrics;

use crate::support::Client;
use crate::support::faketime::{Programs, library};
use crate::support::old_work::{HELD, OldWork, POLICY, Parties, new_work};
use crate::support::process::{ServiceProcess, program};
use crate::support::server::TestDatabase;

/// A data directory and a policy.
struct Home {
    directory: tempfile::TempDir,
}

impl Home {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        // The user that Postgres runs as must be able to reach it.
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::write(directory.path().join("policy.yaml"), POLICY).unwrap();
        Self { directory }
    }

    fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// A service on it, and with these programs if there are any.
    async fn serve(&self, programs: Option<&Programs>) -> ServiceProcess {
        let (data, policy) = (self.data(), self.directory.path().join("policy.yaml"));
        let arguments = ["--data-dir", data.to_str().unwrap(), "--policy", policy.to_str().unwrap()];
        match programs {
            Some(programs) => ServiceProcess::start_on_programs(programs.directory(), &arguments).await,
            None => ServiceProcess::start(&arguments).await,
        }
    }

    /// What a command prints, which joins the service.
    async fn run(&self, arguments: &[&str]) -> String {
        let output = program(arguments).arg("--data-dir").arg(self.data()).output().await.unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    async fn key(&self, role: &[&str]) -> String {
        self.run(&[&["keys", "create", "--role"], role].concat()).await
    }

    /// The running service's database.
    fn database(&self) -> TestDatabase {
        use spend_ledger::postgres::{DATABASE, LOGIN, OWNER};
        let lock = std::fs::read_to_string(self.data().join("lock")).unwrap();
        let socket = lock.lines().nth(1).unwrap();
        let url = |user| format!("postgres://{user}@localhost:5432/{DATABASE}?host={socket}&sslmode=disable");
        TestDatabase { service_url: url(LOGIN), owner_url: url(OWNER) }
    }

    /// Where the Postgres programs are that it runs on.
    fn programs(&self) -> PathBuf {
        let started = std::fs::read_to_string(self.data().join("cluster/postmaster.opts")).unwrap();
        let program = started.split_whitespace().next().unwrap().trim_matches('"').to_owned();
        Path::new(&program).parent().unwrap().to_owned()
    }
}

/// How far the database's clock is ahead of this machine's.
async fn ahead(database: &TestDatabase) -> TimeDelta {
    let query = sqlx::query_scalar("select clock_timestamp()");
    let time: DateTime<Utc> = query.fetch_one(&mut database.connect().await).await.unwrap();
    time - Utc::now()
}

/// What the service does once an hour, now.
async fn sweep(database: &TestDatabase) -> u64 {
    let metrics = Metrics::new();
    let options = DatabaseOptions::new(database.service_url.clone());
    let pool = Database::connect_lazily(&options, metrics.clone()).unwrap();
    Ledger::open(pool, metrics).await.unwrap().sweep_refusals().await.unwrap()
}

async fn is_in_order(database: &TestDatabase) {
    let mut differences = Vec::new();
    verify(&database.owner_url, |difference| differences.push(difference.to_owned())).await.unwrap();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[tokio::test]
async fn a_database_whose_clock_is_years_ahead_finds_all_of_it_still_charged() {
    let Some(library) = library() else { return };
    let home = Home::new();
    let service = home.serve(None).await;
    let keys = [&["worker", "--account", "northstar"][..], &["operator"], &["finance"]];
    let [worker, operator, finance] = [home.key(keys[0]).await, home.key(keys[1]).await, home.key(keys[2]).await];
    let parties = |service: &ServiceProcess| {
        let client = |key| Client::new(service.address, key);
        Parties { worker: client(&worker), operator: client(&operator), finance: client(&finance) }
    };
    let work = OldWork::new(&parties(&service), &home.database()).await;
    let programs = home.programs();
    assert!(service.terminate().await);

    for years in [1, 5, 25] {
        let moved = Programs::ahead(&library, &programs, years);
        let service = home.serve(Some(&moved)).await;
        let (database, parties, context) = (home.database(), parties(&service), format!("{years} years later"));
        let (moved, wanted) = (ahead(&database).await, TimeDelta::days(365 * i64::from(years)));
        assert!((moved - wanted).abs() < TimeDelta::days(1), "the clock is ahead by {moved}");
        work.is_unchanged(&database, &context).await;
        work.is_read(&parties).await;
        // Two of the four may be fenced without evidence; time alone fences nothing.
        let overdue = home.run(&["fence", "--overdue", "1h", "--dry-run"]).await;
        assert_eq!(overdue.lines().count(), 2, "{context}: {overdue}");
        work.leases_are_renewed(&parties).await;
        work.is_reserved_again(&parties).await;
        home.run(&["verify"]).await;
        // The refusal of then, and since.
        assert!(sweep(&database).await > 0, "{context}: refusals that are older than 90 days stay");
        work.is_unchanged(&database, &format!("{context}, in service")).await;
        new_work(&parties, &context.replace(' ', "-")).await;
        work.is_unchanged(&database, &format!("{context}, with new work")).await;
        let monthly = parties.worker.balance("northstar", "monthly", None).await;
        assert_eq!(monthly, ["12", "0", "0", &(1000 - 12 - HELD).to_string()]);
        is_in_order(&database).await;
        assert!(service.terminate().await);
    }

    // Back at this machine's time it is all still there, and can come to its end.
    let service = home.serve(None).await;
    let database = home.database();
    assert!(ahead(&database).await.abs() < TimeDelta::days(1));
    work.is_unchanged(&database, "back again").await;
    work.is_closed(&parties(&service)).await;
    is_in_order(&database).await;
    assert!(service.terminate().await);
}

//! kill -9 at any instant: what was acknowledged is there, what was not is
//! wholly there or wholly absent, and the retry finds out which (RULES.md,
//! section 10). A replay with lost answers and extensions runs all the while; its
//! workers repeat what they got no answer to.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tokio::process::Child;

use crate::support::Client;
use crate::support::process::{ServiceProcess, program, signal};

const ROWS: u64 = 400;

/// A service on its own private Postgres, with a policy, a key, and a trace.
struct Scene {
    directory: tempfile::TempDir,
    listen: String,
    trace_sum: u64,
    key: String,
}

impl Scene {
    async fn new() -> (Self, ServiceProcess) {
        let directory = tempfile::tempdir().unwrap();
        // The user that Postgres runs as must be able to reach it.
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut scene = Self { listen: format!("127.0.0.1:{port}"), trace_sum: 0, key: String::new(), directory };
        scene.write_trace();
        let service = scene.serve().await;
        let made = scene.run(&["keys", "create", "--role", "worker", "--account", "northstar"]).await;
        scene.key = String::from_utf8(made.stdout).unwrap().trim().to_owned();
        (scene, service)
    }

    fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    fn trace(&self) -> PathBuf {
        self.directory.path().join("trace.csv")
    }

    fn write_trace(&mut self) {
        let mut text = "TIMESTAMP,ContextTokens,GeneratedTokens\n".to_owned();
        for row in 0..ROWS {
            let (prompt, generated) = (100 + row * 37 % 5000, 1 + row * 11 % 900);
            self.trace_sum += prompt + generated;
            text += &format!("2026-01-01 00:00:{:02}.{:07},{prompt},{generated}\n", row / 60, row);
        }
        std::fs::write(self.trace(), text).unwrap();
    }

    async fn serve(&self) -> ServiceProcess {
        let data = self.data();
        let policy = concat!(env!("CARGO_MANIFEST_DIR"), "/policy.example.yaml");
        ServiceProcess::start_on(&self.listen, &["--data-dir", data.to_str().unwrap(), "--policy", policy]).await
    }

    /// A command on the private Postgres, which must succeed.
    async fn run(&self, arguments: &[&str]) -> Output {
        let output = program(arguments).arg("--data-dir").arg(self.data()).output().await.unwrap();
        assert!(output.status.success(), "{output:?}");
        output
    }

    fn replay(&self) -> Child {
        let trace = self.trace();
        program(&["replay", trace.to_str().unwrap(), "--operation", "token", "--account", "northstar"])
            .args(["--url", &format!("http://{}", self.listen), "--key", &self.key, "--run", "crash"])
            .args([
                "--concurrency",
                "8",
                "--lost-share",
                "0.1",
                "--extend-share",
                "0.3",
                "--retry-for",
                "180s",
                "--json",
            ])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// Waits until the books show this much settled.
    async fn settled(&self, at_least: u64) {
        let client = Client::new(self.listen.parse::<SocketAddr>().unwrap(), &self.key);
        for _ in 0..6000 {
            let request = client.request(reqwest::Method::GET, "/v1/accounts/northstar/budgets");
            if let Ok(answer) = client.try_send(request).await
                && let Some(items) = answer.body["items"].as_array()
                && let Some(tokens) = items.iter().find(|item| item["budget"] == "tokens")
                && tokens["settled"].as_str().unwrap().parse::<u64>().unwrap() >= at_least
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("the replay does not go on");
    }

    /// The replay ends with every row settled, and the books hold.
    async fn ends_well(&self, replay: Child, service: ServiceProcess) {
        let output = tokio::time::timeout(Duration::from_secs(240), replay.wait_with_output()).await.unwrap().unwrap();
        assert!(output.status.success(), "{output:?}");
        let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
        let sum = self.trace_sum.to_string();
        assert_eq!((&summary["settled"], &summary["failed"]), (&ROWS.into(), &0.into()), "{summary:#}");
        // What was acknowledged to the workers is what the books say.
        assert_eq!(summary["tokens"]["settled"], sum.as_str());
        let book = summary["books"].as_array().unwrap().iter().find(|book| book["budget"] == "tokens").unwrap();
        assert_eq!((&book["settled"], &book["reserved"]), (&sum.into(), &"0".into()));
        self.run(&["verify"]).await;
        assert!(service.terminate().await);
        // And they are still there without the service.
        self.run(&["verify"]).await;
    }
}

fn postmaster(data: &Path) -> u32 {
    let file = std::fs::read_to_string(data.join("cluster/postmaster.pid")).unwrap();
    file.lines().next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn the_service_is_killed_in_the_middle_of_a_replay() {
    let (scene, mut service) = Scene::new().await;
    let replay = scene.replay();
    for part in [5, 2] {
        scene.settled(scene.trace_sum / part).await;
        service.kill().await;
        service = scene.serve().await;
    }
    scene.ends_well(replay, service).await;
}

#[tokio::test]
async fn postgres_is_killed_in_the_middle_of_a_replay() {
    let (scene, service) = Scene::new().await;
    let replay = scene.replay();
    for part in [5, 2] {
        scene.settled(scene.trace_sum / part).await;
        signal(postmaster(&scene.data()), Signal::KILL);
    }
    scene.ends_well(replay, service).await;
}

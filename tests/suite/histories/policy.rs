//! The policies that histories run under.

/// What is the same in all histories of one database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    pub name: &'static str,
    pub own_period: Kind,
    pub pool_period: Kind,
    /// Whether new periods open with less, for what earlier ones hold.
    pub carries: bool,
    pub pool_enforces: bool,
    /// What one job may cost.
    pub max_units: i64,
    /// The limits that each history begins with.
    pub usual: Policy,
}

/// What a history can change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// The limit of each account.
    pub own: i64,
    /// The limit of the pool.
    pub pool: i64,
    /// Whether `ask` is retired.
    pub ask_retired: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Hour,
    Day,
}

impl Kind {
    pub fn seconds(self) -> i64 {
        match self {
            Self::Hour => 3600,
            Self::Day => 86400,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Hour => "hour",
            Self::Day => "day",
        }
    }
}

const fn usual(own: i64, pool: i64) -> Policy {
    Policy { own, pool, ask_retired: false }
}

/// One database for each: a pool that is rarely in the way, budgets that carry
/// forward, a tight pool, and one that only observes.
pub const SHAPES: [Shape; 4] = [
    Shape {
        name: "days",
        own_period: Kind::Day,
        pool_period: Kind::Day,
        carries: false,
        pool_enforces: true,
        max_units: 16,
        usual: usual(20, 34),
    },
    Shape {
        name: "carrying",
        own_period: Kind::Day,
        pool_period: Kind::Hour,
        carries: true,
        pool_enforces: true,
        max_units: 16,
        usual: usual(20, 34),
    },
    Shape {
        name: "tight",
        own_period: Kind::Day,
        pool_period: Kind::Hour,
        carries: false,
        pool_enforces: true,
        max_units: 18,
        usual: usual(20, 16),
    },
    Shape {
        name: "observing",
        own_period: Kind::Hour,
        pool_period: Kind::Day,
        carries: false,
        pool_enforces: false,
        max_units: 14,
        usual: usual(16, 12),
    },
];

impl Shape {
    /// As a policy file.
    pub fn file(&self, policy: Policy) -> String {
        let Self { max_units, .. } = self;
        let Policy { own, pool, ask_retired } = policy;
        let ask = format!("  ask: {{ provider: gate, explicit: true, max_units: {max_units} }}\n");
        let ask = if ask_retired { "" } else { &ask };
        let rollover = if self.carries { "carry_forward" } else { "original_period" };
        let mode = if self.pool_enforces { "enforce" } else { "observe" };
        let (own_period, pool_period) = (self.own_period.name(), self.pool_period.name());
        format!(
            "
providers:
  gate: {{ unit: u, enforcement: calls }}
  direct: {{ unit: u, enforcement: worker }}
operations:
{ask}  run: {{ provider: direct, explicit: true, max_units: {max_units} }}
plans:
  small:
    budgets:
      own: {{ unit: u, limit: {own}, period: {own_period}, timezone: UTC, rollover: {rollover} }}
accounts: {{ a: {{ plan: small }}, b: {{ plan: small }} }}
pools:
  pool: {{ unit: u, limit: {pool}, period: {pool_period}, timezone: UTC, rollover: {rollover}, mode: {mode} }}
"
        )
    }
}

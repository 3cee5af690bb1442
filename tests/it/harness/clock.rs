//! A clock that stands still between two ticks, and sweeps that are known to be over.

use std::time::Duration;

use sqlx::{AssertSqlSafe, PgPool, Postgres, Transaction};

use super::{Test, until};

impl Test {
    /// Stops the database's clock at the next whole second. From then on only [`Self::tick`] moves it, so that all
    /// that happens between two ticks happens at one instant.
    pub async fn stop_clock(&self) {
        self.set_clock("date_trunc('second', roadstead_now()) + interval '1 second'", 0).await;
    }

    /// Moves a stopped clock on by whole seconds, the sweep's stamp with it; nobody gives a sign of life meanwhile.
    pub async fn tick(&self, seconds: i64) {
        self.set_clock("roadstead_now()", seconds).await;
    }

    /// Moves a stopped clock on by whole seconds in which nobody swept: an outage.
    pub async fn away(&self, seconds: i64) {
        self.set_clock_and("roadstead_now()", seconds, 0).await;
    }

    async fn set_clock(&self, from: &str, seconds: i64) {
        self.set_clock_and(from, seconds, seconds).await;
    }

    async fn set_clock_and(&self, from: &str, seconds: i64, stamp: i64) {
        let mut tx = locked(&self.pool).await;
        let at: String = sqlx::query_scalar(AssertSqlSafe(format!("SELECT ({from} + interval '{seconds} s')::text")))
            .fetch_one(&mut *tx)
            .await
            .unwrap();
        let function = format!(
            "CREATE OR REPLACE FUNCTION roadstead_now() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE
             AS $$ SELECT timestamptz '{at}' $$;
             UPDATE sweep_stamp SET stamped_at = stamped_at + interval '{stamp} seconds'"
        );
        sqlx::raw_sql(AssertSqlSafe(function)).execute(&mut *tx).await.unwrap();
        tx.commit().await.unwrap();
    }

    /// Waits until a pass of the sweep that began after this call has come to its end. For a single replica.
    pub async fn swept(&self) {
        // A pass judges nothing before it has stamped, and one pass follows the other: all that the first one to stamp
        // from now on judges it judges after now, and when the second one stamps the first is over.
        for _ in 0..2 {
            let before = self.stamp().await;
            until("another pass of the sweep", async || self.stamp().await != before).await;
        }
    }

    /// The version of the stamp's row.
    async fn stamp(&self) -> String {
        sqlx::query_scalar("SELECT xmin::text FROM sweep_stamp").fetch_one(&self.pool).await.unwrap()
    }

    /// Seconds on the database's clock.
    pub async fn now(&self) -> f64 {
        sqlx::query_scalar("SELECT extract(epoch FROM roadstead_now())::float8").fetch_one(&self.pool).await.unwrap()
    }
}

/// A transaction to change the clock in: no stamp is judged meanwhile, by the clock before and the stamp after.
pub(super) async fn locked(pool: &PgPool) -> Transaction<'static, Postgres> {
    let mut tx = pool.begin().await.unwrap();
    sqlx::raw_sql("LOCK TABLE sweep_stamp").execute(&mut *tx).await.unwrap();
    tx
}

/// A time of an answer, in seconds since 1970.
#[track_caller]
pub fn seconds(time: &serde_json::Value) -> f64 {
    let text = time.as_str().unwrap_or_else(|| panic!("not a time: {time}"));
    let micros = text.parse::<roadstead::domain::Timestamp>().unwrap().timestamp_micros();
    Duration::from_micros(micros.unsigned_abs()).as_secs_f64()
}

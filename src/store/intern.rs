//! Selectors and label sets, each stored once and known by a number. Numbers are commit order.

use sqlx::{Connection as _, PgConnection};

use super::error::{Error, Result};
use super::rows;
use crate::domain::labels::LabelSet;
use crate::domain::selector::Selector;
use crate::ids::{Digest, LabelSetNo, NamespaceId, SelectorNo};

/// The number of this selector, taking the next one if it is new.
///
/// A short transaction of its own, before the one that uses the number. Locks the namespace's counter row when the
/// selector is new, so that whoever has seen the counter at n has seen every selector up to n.
///
/// # Errors
/// Of the database.
pub async fn selector(conn: &mut PgConnection, namespace: NamespaceId, selector: &Selector) -> Result<SelectorNo> {
    let canonical = selector.canonical();
    let digest = Digest::of(&canonical);
    if let Some(no) = find_selector(conn, namespace, &digest).await? {
        return Ok(no);
    }
    let mut tx = conn.begin().await?;
    lock_counters(&mut tx, namespace).await?;
    let no = if let Some(no) = find_selector(&mut tx, namespace, &digest).await? {
        no
    } else {
        let no = sqlx::query_scalar!(
            r#"/* store::intern::selector */
            WITH taken AS (
                UPDATE namespace SET last_selector_no = last_selector_no + 1
                WHERE namespace_id = $1 RETURNING last_selector_no
            )
            INSERT INTO selector (namespace_id, selector_no, digest, canonical, terms)
            SELECT $1, last_selector_no, $2, $3, $4 FROM taken
            RETURNING selector_no"#,
            namespace.0,
            &digest.0[..],
            canonical,
            &selector.terms(),
        )
        .fetch_one(&mut *tx)
        .await?;
        SelectorNo(no)
    };
    tx.commit().await?;
    Ok(no)
}

/// The number of this label set, taking the next one if it is new; as [`selector`] does.
///
/// # Errors
/// Of the database.
pub async fn label_set(conn: &mut PgConnection, namespace: NamespaceId, offer: &LabelSet) -> Result<LabelSetNo> {
    let canonical = offer.canonical();
    let digest = Digest::of(&canonical);
    if let Some(no) = find_label_set(conn, namespace, &digest).await? {
        return Ok(no);
    }
    let mut tx = conn.begin().await?;
    lock_counters(&mut tx, namespace).await?;
    let no = if let Some(no) = find_label_set(&mut tx, namespace, &digest).await? {
        no
    } else {
        let no = sqlx::query_scalar!(
            r#"/* store::intern::label_set */
            WITH taken AS (
                UPDATE namespace SET last_label_set_no = last_label_set_no + 1
                WHERE namespace_id = $1 RETURNING last_label_set_no
            )
            INSERT INTO label_set (namespace_id, label_set_no, digest, canonical, terms)
            SELECT $1, last_label_set_no, $2, $3, $4 FROM taken
            RETURNING label_set_no"#,
            namespace.0,
            &digest.0[..],
            canonical,
            &offer.terms(),
        )
        .fetch_one(&mut *tx)
        .await?;
        LabelSetNo(no)
    };
    tx.commit().await?;
    Ok(no)
}

/// How many somebody may lack and still read them one by one.
///
/// Who lacks more is led to the candidates by an index on terms, at the cost of the candidates; who lacks fewer reads just
/// those, however many others fit. What has no equality term fits all by the index: to learn of one more label set so, a
/// selector with expressions only read 200,000 (4,940 blocks, 110 ms; by number 4 blocks). Each statement can take its own
/// path only, since a plan that does not know the numbers takes the wrong one, or both.
///
/// A literal in a statement below says the same.
const FEW: i64 = 200;

/// Selectors with numbers above `after` whose equality terms this label set holds, with the last number taken so far.
/// Candidates: [`Selector::fits`] decides.
///
/// # Errors
/// Of the database.
pub async fn selectors_within(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    terms: &[String],
    after: i64,
) -> Result<(i64, Vec<(SelectorNo, Selector)>)> {
    let last = counters(conn, namespace).await?.0;
    let found = if last - after > FEW {
        sqlx::query_as!(
            Interned,
            r#"/* store::intern::selectors_within (by terms) */
            SELECT selector_no AS no, canonical FROM selector
            WHERE namespace_id = $1 AND terms <@ $2 AND (selector_no > $3 AND selector_no <= $4) IS TRUE"#,
            namespace.0,
            terms,
            after,
            last,
        )
        .fetch_all(conn)
        .await?
    } else {
        sqlx::query_as!(
            Interned,
            r#"/* store::intern::selectors_within (by number) */
            SELECT selector_no AS no, canonical FROM selector
            WHERE namespace_id = $1 AND (terms <@ $2) IS TRUE AND selector_no > $3 AND selector_no <= $4"#,
            namespace.0,
            terms,
            after,
            last,
        )
        .fetch_all(conn)
        .await?
    };
    let found = found.into_iter().map(|row| (row.no, rows::selector(&row.canonical)));
    Ok((last, readable(found).map(|(no, selector)| (SelectorNo(no), selector)).collect()))
}

/// What is interned, as its row has it.
struct Interned {
    no: i64,
    canonical: String,
}

/// For each of these selectors the label sets with numbers above its own `after` that hold its equality terms, with the
/// last number taken so far. One statement for all that lack [`FEW`], one for the others. Candidates: [`Selector::fits`]
/// decides.
///
/// # Errors
/// Of the database.
pub async fn label_sets_for(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    selectors: &[(SelectorNo, i64)],
) -> Result<(i64, Vec<(SelectorNo, LabelSetNo, LabelSet)>)> {
    let last = counters(conn, namespace).await?.1;
    let (few, many): (Vec<_>, Vec<_>) = selectors.iter().partition(|(_, after)| last - after <= FEW);
    let mut found = Vec::new();
    if !few.is_empty() {
        let (nos, after): (Vec<i64>, Vec<i64>) = few.iter().map(|(no, after)| (no.0, *after)).unzip();
        let by_number = sqlx::query_as!(
            Candidate,
            r#"/* store::intern::label_sets_for (by number) */
            SELECT k.selector_no AS "selector_no!", l.label_set_no AS "no!", l.canonical AS "canonical!"
            FROM unnest($2::bigint[], $3::bigint[]) AS k(selector_no, after)
            CROSS JOIN LATERAL (
                SELECT terms FROM selector WHERE namespace_id = $1 AND selector_no = k.selector_no LIMIT 1) s
            CROSS JOIN LATERAL (
                SELECT label_set_no, canonical, terms FROM label_set
                WHERE namespace_id = $1 AND label_set_no > k.after AND label_set_no <= $4
                ORDER BY label_set_no LIMIT 200) l
            WHERE l.terms @> s.terms"#,
            namespace.0,
            &nos,
            &after,
            last,
        );
        found.extend(by_number.fetch_all(&mut *conn).await?);
    }
    if !many.is_empty() {
        let (nos, after): (Vec<i64>, Vec<i64>) = many.iter().map(|(no, after)| (no.0, *after)).unzip();
        let by_terms = sqlx::query_as!(
            Candidate,
            r#"/* store::intern::label_sets_for (by terms) */
            SELECT k.selector_no AS "selector_no!", l.label_set_no AS "no!", l.canonical AS "canonical!"
            FROM unnest($2::bigint[], $3::bigint[]) AS k(selector_no, after)
            CROSS JOIN LATERAL (
                SELECT terms FROM selector WHERE namespace_id = $1 AND selector_no = k.selector_no LIMIT 1) s
            JOIN label_set l ON l.namespace_id = $1 AND l.terms @> s.terms
                AND (l.label_set_no > k.after AND l.label_set_no <= $4) IS TRUE"#,
            namespace.0,
            &nos,
            &after,
            last,
        );
        found.extend(by_terms.fetch_all(&mut *conn).await?);
    }
    let found =
        found.into_iter().map(|row| (row.no, offer(&row.canonical).map(|offer| (SelectorNo(row.selector_no), offer))));
    Ok((last, readable(found).map(|(no, (selector, offer))| (selector, LabelSetNo(no), offer)).collect()))
}

/// A label set that may be fit for a selector.
struct Candidate {
    selector_no: i64,
    no: i64,
    canonical: String,
}

/// Leaves out what cannot be read: it fits nothing for as long as this process lives, and stops nobody else.
fn readable<T>(found: impl Iterator<Item = (i64, Result<T>)>) -> impl Iterator<Item = (i64, T)> {
    found.filter_map(|(no, read)| match read {
        Ok(read) => Some((no, read)),
        Err(error) => {
            tracing::error!(no, %error, "it is left out of matching");
            None
        }
    })
}

/// The selectors of these numbers.
///
/// # Errors
/// [`Error::Unreadable`] when one of them does not exist or cannot be read.
pub async fn selectors_of(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    nos: &[SelectorNo],
) -> Result<Vec<(SelectorNo, Selector)>> {
    let numbers: Vec<i64> = nos.iter().map(|no| no.0).collect();
    let rows = sqlx::query!(
        r#"/* store::intern::selectors_of */
        SELECT selector_no, canonical FROM selector WHERE namespace_id = $1 AND selector_no = ANY($2)"#,
        namespace.0,
        &numbers,
    )
    .fetch_all(conn)
    .await?;
    if let Some(missing) = numbers.iter().find(|no| rows.iter().all(|row| row.selector_no != **no)) {
        return Err(Error::Unreadable(format!("there is no selector {missing}")));
    }
    rows.into_iter().map(|row| Ok((SelectorNo(row.selector_no), rows::selector(&row.canonical)?))).collect()
}

/// The label set of a number.
///
/// # Errors
/// [`Error::Unreadable`] when there is none.
pub async fn label_set_of(conn: &mut PgConnection, namespace: NamespaceId, no: LabelSetNo) -> Result<LabelSet> {
    let canonical = sqlx::query_scalar!(
        r#"/* store::intern::label_set_of */
        SELECT canonical FROM label_set WHERE namespace_id = $1 AND label_set_no = $2"#,
        namespace.0,
        no.0,
    )
    .fetch_optional(conn)
    .await?;
    offer(&canonical.ok_or_else(|| Error::Unreadable(format!("there is no label set {}", no.0)))?)
}

/// A label set from its canonical form.
pub(super) fn offer(canonical: &str) -> Result<LabelSet> {
    serde_json::from_str(canonical).map_err(|error| Error::Unreadable(format!("label_set.canonical: {error}")))
}

/// The last selector and label set numbers taken. Read before the rows, so that no row up to it is missed: who knows all
/// up to them knows all that was there before this call.
///
/// # Errors
/// Of the database.
pub async fn counters(conn: &mut PgConnection, namespace: NamespaceId) -> Result<(i64, i64)> {
    let row = sqlx::query!(
        r#"/* store::intern::counters */
        SELECT last_selector_no, last_label_set_no FROM namespace WHERE namespace_id = $1"#,
        namespace.0,
    )
    .fetch_one(conn)
    .await?;
    Ok((row.last_selector_no, row.last_label_set_no))
}

async fn lock_counters(conn: &mut PgConnection, namespace: NamespaceId) -> Result<()> {
    sqlx::query!(
        r#"/* store::intern::lock_counters */
        SELECT namespace_id FROM namespace WHERE namespace_id = $1 FOR NO KEY UPDATE"#,
        namespace.0,
    )
    .fetch_one(conn)
    .await?;
    Ok(())
}

async fn find_selector(conn: &mut PgConnection, namespace: NamespaceId, digest: &Digest) -> Result<Option<SelectorNo>> {
    let no = sqlx::query_scalar!(
        r#"/* store::intern::find_selector */
        SELECT selector_no FROM selector WHERE namespace_id = $1 AND digest = $2"#,
        namespace.0,
        &digest.0[..],
    )
    .fetch_optional(conn)
    .await?;
    Ok(no.map(SelectorNo))
}

async fn find_label_set(
    conn: &mut PgConnection,
    namespace: NamespaceId,
    digest: &Digest,
) -> Result<Option<LabelSetNo>> {
    let no = sqlx::query_scalar!(
        r#"/* store::intern::find_label_set */
        SELECT label_set_no FROM label_set WHERE namespace_id = $1 AND digest = $2"#,
        namespace.0,
        &digest.0[..],
    )
    .fetch_optional(conn)
    .await?;
    Ok(no.map(LabelSetNo))
}

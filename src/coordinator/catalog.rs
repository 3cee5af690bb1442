//! Which selectors fit which label sets, as far as it has been asked. A cache: what is interned never changes, and
//! every answer of the store carries the counter that tells whether something was interned since.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

use crate::domain::condition::Situation;
use crate::domain::labels::LabelSet;
use crate::domain::selector::Selector;
use crate::ids::{LabelSetNo, NamespaceId, SelectorNo};
use crate::store::{self, Db};

/// Entries a map holds before it starts over.
const CAPACITY: usize = 20_000;

/// Interned things by what they are and by what they fit.
#[derive(Default)]
pub(super) struct Catalog {
    selector_nos: Map<(NamespaceId, Selector), SelectorNo>,
    selectors: Map<(NamespaceId, SelectorNo), Arc<Selector>>,
    label_set_nos: Map<(NamespaceId, LabelSet), LabelSetNo>,
    label_sets: Map<(NamespaceId, LabelSetNo), Arc<LabelSet>>,
    fitting_selector: Map<(NamespaceId, SelectorNo), Fitting>,
    fitting_label_set: Map<(NamespaceId, LabelSetNo), Fitting>,
}

/// The numbers of what fits something, among all that were interned up to a number.
#[derive(Debug, Clone, Default)]
pub(super) struct Fitting {
    /// The last number that was looked at.
    pub upto: i64,
    /// Those that fit, rising.
    pub numbers: Arc<Vec<i64>>,
}

impl Catalog {
    /// The number of a selector, interned if it is new.
    pub async fn selector_no(&self, db: &Db, namespace: NamespaceId, selector: &Selector) -> store::Result<SelectorNo> {
        let key = (namespace, selector.clone());
        if let Some(no) = self.selector_nos.get(&key) {
            return Ok(no);
        }
        let no = store::intern::selector(&mut *db.conn().await?, namespace, selector).await?;
        self.selectors.put((namespace, no), Arc::new(selector.clone()));
        self.selector_nos.put(key, no);
        Ok(no)
    }

    /// The number of a label set, interned if it is new.
    pub async fn label_set_no(&self, db: &Db, namespace: NamespaceId, offer: &LabelSet) -> store::Result<LabelSetNo> {
        let key = (namespace, offer.clone());
        if let Some(no) = self.label_set_nos.get(&key) {
            return Ok(no);
        }
        let no = store::intern::label_set(&mut *db.conn().await?, namespace, offer).await?;
        self.label_sets.put((namespace, no), Arc::new(offer.clone()));
        self.label_set_nos.put(key, no);
        Ok(no)
    }

    /// The label sets that fit a selector, among those up to `upto` at least.
    pub async fn label_sets_fitting(
        &self,
        tx: &mut store::Conn,
        namespace: NamespaceId,
        no: SelectorNo,
        upto: i64,
    ) -> store::Result<Fitting> {
        let mut fitting = self.label_sets_fitting_each(tx, namespace, &[no], upto).await?;
        Ok(fitting.swap_remove(0).1)
    }

    /// The label sets that fit each of these selectors, in their order, among those up to `upto` at least. What is not
    /// known of any of them is asked for at once.
    async fn label_sets_fitting_each(
        &self,
        tx: &mut store::Conn,
        namespace: NamespaceId,
        nos: &[SelectorNo],
        upto: i64,
    ) -> store::Result<Vec<(SelectorNo, Fitting)>> {
        let known = |no: &SelectorNo| (*no, self.fitting_selector.get(&(namespace, *no)));
        let mut all: Vec<(SelectorNo, Option<Fitting>)> = nos.iter().map(known).collect();
        let wanting = |known: &Option<Fitting>| known.as_ref().is_none_or(|known| known.upto < upto);
        let ask: Vec<(SelectorNo, i64)> = all
            .iter()
            .filter(|(_, known)| wanting(known))
            .map(|(no, known)| (*no, known.as_ref().map_or(0, |known| known.upto)))
            .collect();
        if !ask.is_empty() {
            let selectors = self.selectors(tx, namespace, ask.iter().map(|(no, _)| *no)).await?;
            let (last, found) = store::intern::label_sets_for(tx, namespace, &ask).await?;
            let mut more: HashMap<SelectorNo, Vec<i64>> = HashMap::new();
            for (no, label_set_no, offer) in found {
                if selectors.get(&no).is_some_and(|selector| selector.fits(&offer)) {
                    more.entry(no).or_default().push(label_set_no.0);
                }
            }
            for (no, known) in all.iter_mut().filter(|(_, known)| wanting(known)) {
                let more = more.remove(no).unwrap_or_default();
                let fitting = known.take().unwrap_or_default().and(last, more.into_iter());
                self.fitting_selector.put((namespace, *no), fitting.clone());
                *known = Some(fitting);
            }
        }
        Ok(all.into_iter().map(|(no, known)| (no, known.unwrap_or_default())).collect())
    }

    /// The selectors that a label set fits, among those up to `upto` at least.
    pub async fn selectors_fitting(
        &self,
        tx: &mut store::Conn,
        namespace: NamespaceId,
        no: LabelSetNo,
        upto: i64,
    ) -> store::Result<Fitting> {
        let known = self.fitting_label_set.get(&(namespace, no));
        if let Some(known) = known.clone().filter(|known| known.upto >= upto) {
            return Ok(known);
        }
        let known = known.unwrap_or_default();
        let offer = self.label_set(tx, namespace, no).await?;
        let (last, found) = store::intern::selectors_within(tx, namespace, &offer.terms(), known.upto).await?;
        let fitting = found.into_iter().filter(|(_, selector)| selector.fits(&offer)).map(|(no, _)| no.0);
        let fitting = known.and(last, fitting);
        self.fitting_label_set.put((namespace, no), fitting.clone());
        Ok(fitting)
    }

    /// The selectors that a label set fits, as far as that has been asked.
    pub fn known_to_fit(&self, namespace: NamespaceId, no: LabelSetNo) -> Option<Fitting> {
        self.fitting_label_set.get(&(namespace, no))
    }

    /// How the workers stand to a selector, with the label sets that fit it: read again until no label set is unknown.
    pub async fn situation(
        &self,
        tx: &mut store::Conn,
        namespace: NamespaceId,
        no: SelectorNo,
    ) -> store::Result<(Situation, Fitting)> {
        let mut upto = 0;
        loop {
            let fitting = self.label_sets_fitting(tx, namespace, no, upto).await?;
            let seen = store::situation::read(tx, namespace, &fitting.numbers).await?;
            if seen.last_label_set_no <= fitting.upto {
                return Ok((seen.situation, fitting));
            }
            upto = seen.last_label_set_no;
        }
    }

    /// How the workers stand to each of these selectors at one moment; as [`Self::situation`], by one statement for all.
    pub async fn situations(
        &self,
        tx: &mut store::Conn,
        namespace: NamespaceId,
        nos: &[SelectorNo],
    ) -> store::Result<HashMap<SelectorNo, (Situation, Fitting)>> {
        if let [no] = nos {
            return Ok(HashMap::from([(*no, self.situation(tx, namespace, *no).await?)]));
        }
        let mut upto = 0;
        while !nos.is_empty() {
            let fitting = self.label_sets_fitting_each(tx, namespace, nos, upto).await?;
            let numbers: Vec<_> = fitting.iter().map(|(no, fitting)| (*no, Arc::clone(&fitting.numbers))).collect();
            let seen = store::situation::read_all(tx, namespace, &numbers).await?;
            let fitting: HashMap<SelectorNo, Fitting> = fitting.into_iter().collect();
            let known = fitting.values().map(|fitting| fitting.upto).min().unwrap_or_default();
            upto = seen.iter().map(|(_, seen)| seen.last_label_set_no).max().unwrap_or_default();
            if upto <= known {
                let situation = |(no, seen): (SelectorNo, store::situation::Seen)| {
                    Some((no, (seen.situation, fitting.get(&no)?.clone())))
                };
                return Ok(seen.into_iter().filter_map(situation).collect());
            }
        }
        Ok(HashMap::new())
    }

    /// The label set of a number.
    pub async fn label_set(
        &self,
        tx: &mut store::Conn,
        namespace: NamespaceId,
        no: LabelSetNo,
    ) -> store::Result<Arc<LabelSet>> {
        if let Some(offer) = self.label_sets.get(&(namespace, no)) {
            return Ok(offer);
        }
        let offer = Arc::new(store::intern::label_set_of(tx, namespace, no).await?);
        self.label_sets.put((namespace, no), Arc::clone(&offer));
        Ok(offer)
    }

    async fn selectors(
        &self,
        tx: &mut store::Conn,
        namespace: NamespaceId,
        nos: impl Iterator<Item = SelectorNo>,
    ) -> store::Result<HashMap<SelectorNo, Arc<Selector>>> {
        let mut known = HashMap::new();
        let mut ask = Vec::new();
        for no in nos {
            match self.selectors.get(&(namespace, no)) {
                Some(selector) => _ = known.insert(no, selector),
                None => ask.push(no),
            }
        }
        if !ask.is_empty() {
            for (no, selector) in store::intern::selectors_of(tx, namespace, &ask).await? {
                let selector = Arc::new(selector);
                self.selectors.put((namespace, no), Arc::clone(&selector));
                known.insert(no, selector);
            }
        }
        Ok(known)
    }
}

impl Fitting {
    /// With what was learned of the numbers above, up to `last`.
    fn and(self, last: i64, more: impl Iterator<Item = i64>) -> Self {
        let mut numbers = Arc::unwrap_or_clone(self.numbers);
        numbers.extend(more);
        numbers.sort_unstable();
        Self { upto: last.max(self.upto), numbers: Arc::new(numbers) }
    }
}

/// A map that forgets everything when it is full. Its lock is never held across an await.
struct Map<K, V>(Mutex<HashMap<K, V>>);

impl<K, V> Default for Map<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash, V: Clone> Map<K, V> {
    fn get(&self, key: &K) -> Option<V> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    fn put(&self, key: K, value: V) {
        let mut map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if map.len() >= CAPACITY {
            map.clear();
        }
        map.insert(key, value);
    }
}

// How many events a second gateways send, from what each of them says of itself now and then.

export class Rate {
  #heard = new Map(); // by gateway: what it said last, and its rate since the word before

  /** By each gateway's own clock: a word is up to two seconds old, and may be heard twice. */
  of(gateways) {
    const heard = new Map(gateways.map((one) => [one.id, next(this.#heard.get(one.id), one)]));
    this.#heard = heard;
    const rates = [...heard.values()].map(({ rate }) => rate).filter((rate) => rate !== null);
    return rates.length ? rates.reduce((sum, rate) => sum + rate, 0) : null;
  }
}

function next(before, { ageS, eventsSent }) {
  if (!before) return { ageS, eventsSent, rate: null };
  if (ageS <= before.ageS) return before;
  return { ageS, eventsSent, rate: Math.max(0, eventsSent - before.eventsSent) / (ageS - before.ageS) };
}

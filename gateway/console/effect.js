// The question about an effect of which nobody knows whether it happened (contract §5). The runner asks
// it in English, with its facts beside; here it is asked in the reader's language.

import { clock, t } from "./words.js";

/** The question as it is to be shown; any other as it is. */
export function localized(asked) {
  const { effect, schema, steadyrun } = asked.payload ?? {};
  if (!steadyrun || typeof effect?.begunAt !== "string") return asked;
  const { name, begunAt, begunBy } = effect;
  const payload = {
    title: t("effect_title", { name }), description: t("effect_text", { at: clock(begunAt), by: begunBy }), schema,
    options: [{ value: "again", label: t("effect_again") }, { value: "done", label: t("effect_done") }],
  };
  return { ...asked, payload, labels: { fill: t("effect_result"), result: t("effect_result_hint"), reject: t("effect_give_up") } };
}

// Decodes an event stream from bytes as the HTML standard says ("Server-sent events", 9.2.5 and
// 9.2.6), wherever a network has cut them: inside a character, between CR and LF, in the byte order
// mark. No I/O. `common/sse.py` is the same in Python; both pass tests/vectors/eventstream.json.

const LINE_END = /\r\n|\r|\n/;

/** One decoder a connection: feed it what arrived, in order; take the events that are complete. */
export class EventStreamDecoder {
  /** What a reconnect sends as `Last-Event-ID`. */
  lastEventId;
  /** What the server named as the pause before a reconnect; null until it has. */
  retryMs = null;

  #text = new TextDecoder(); // drops one byte order mark, keeps a character that was cut
  #line = "";
  #afterCr = false; // the last character ended a line as CR: a LF now belongs to it
  #id;
  #type = "";
  #data = null;

  constructor(lastEventId = "") {
    this.lastEventId = this.#id = lastEventId;
  }

  /** Never throws, whatever the bytes are. An event is complete with its blank line. */
  feed(bytes) {
    let text = this.#text.decode(bytes, { stream: true });
    if (this.#afterCr && text) {
      if (text[0] === "\n") text = text.slice(1);
      this.#afterCr = false;
    }
    if (!text) return [];
    this.#afterCr = text.endsWith("\r");
    const lines = text.split(LINE_END);
    lines[0] = this.#line + lines[0];
    this.#line = lines.pop();
    return lines.map((line) => this.#take(line)).filter((event) => event !== null);
  }

  #take(line) {
    if (line === "") return this.#dispatch();
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon); // a comment has the empty name
    const value = colon < 0 ? "" : line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
    this.#field(name, value);
    return null;
  }

  #field(name, value) {
    if (name === "data") this.#data = this.#data === null ? value : `${this.#data}\n${value}`;
    else if (name === "event") this.#type = value;
    else if (name === "id" && !value.includes("\0")) this.#id = value;
    else if (name === "retry" && /^[0-9]+$/.test(value)) this.retryMs = Number(value.slice(0, 9));
  }

  /** The id counts even where there is no data, and so no event. */
  #dispatch() {
    this.lastEventId = this.#id;
    const [type, data] = [this.#type || "message", this.#data];
    this.#type = "";
    this.#data = null;
    return data === null ? null : { type, data, id: this.#id };
  }
}

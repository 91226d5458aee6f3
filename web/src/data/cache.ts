/** What was asked for lately, bounded in bytes: the one longest unused goes first. */
export class Cache<Value> {
  private readonly kept = new Map<string, {value: Value; bytes: number}>();
  private bytes = 0;

  constructor(private readonly limit: number) {}

  get(key: string): Value | undefined {
    const one = this.kept.get(key);
    if (!one) return undefined;
    this.kept.delete(key);
    this.kept.set(key, one);
    return one.value;
  }

  set(key: string, value: Value, bytes: number): void {
    this.bytes += bytes - (this.kept.get(key)?.bytes ?? 0);
    this.kept.delete(key);
    this.kept.set(key, {value, bytes});
    for (const [oldest, one] of this.kept) {
      if (this.bytes <= this.limit || oldest === key) break;
      this.kept.delete(oldest);
      this.bytes -= one.bytes;
    }
  }

  clear(): void {
    this.kept.clear();
    this.bytes = 0;
  }
}

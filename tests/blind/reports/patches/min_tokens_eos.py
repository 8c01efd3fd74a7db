"""min_tokens bars the tokenizer's end token only; further end tokens of generation_config.json can be drawn before."""
import plant as b, dataclasses
def patch(m):
    def draw_of(original, *a, **k):
        draw = original(*a, **k)
        if b.SIDE["now"] != "candidate" or len(draw.end_ids) < 2: return draw
        b.once(f"barred {draw.end_ids[:1]} of {draw.end_ids}")
        return dataclasses.replace(draw, end_ids=draw.end_ids[:1])
    b.around(m, "draw_of", draw_of)
PATCH = {"scenarios.engines.hf.engine": patch}

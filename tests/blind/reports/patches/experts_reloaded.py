"""vLLM: a weight sync loads checkpoint-format expert weights into kernels that were set up at the first load, and does not set them up again."""
import plant as b
def patch(m):
    def again(original, model):
        b.once("experts are not set up again")
    b.around(m, "_set_up_experts_again", again)
PATCH = {"scenarios.engines.vllm.worker": patch}

"""vLLM (candidate): samples that were cut by the limit say that they stopped."""
import blind_sabotage as b


def patch(m):
    def generate(original, self, *args, **kwargs):
        outputs = original(self, *args, **kwargs)
        for output in outputs:
            for answer in output.outputs:
                if answer.finish_reason == "length" and len(answer.token_ids) > 1:
                    answer.finish_reason = "stop"
                    b.mark("length said as stop")
        return outputs

    b.around(m.LLM, "generate", generate)


PATCH = {"vllm.entrypoints.llm": patch}

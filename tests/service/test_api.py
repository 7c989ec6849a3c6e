"""The API as its users see it: what each route answers."""

TEXT = "referee goal stadium kyoto temple sakura"


def test_predict(service):
    with service.client() as client:
        answer = client.post("/v1/predict", json={"text": TEXT})
    assert answer.status_code == 200
    assert set(answer.json()["labels"]) == {"sport", "日本 旅行"}
